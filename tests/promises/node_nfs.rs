//! Exports of file servers are mounted by the host's `mount` as the kubelet has it do, and what it says when it cannot is
//! told. A stand-in for `mount` binds a folder instead, so that no file server is needed.

use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tests::ApiServer;
use tests::node::Node;
use tests::pods::Pods;

const PATIENCE: Duration = Duration::from_secs(60);

/// The program that mounts, and what it was asked.
struct Mount {
    folder: PathBuf,
}

impl Mount {
    /// Below `export/` is what every file server has; one named `closed.example` lets nobody in until there is a file `open`.
    fn new() -> Result<Self> {
        let folder = tests::scratch("nfs")?;
        std::fs::create_dir_all(folder.join("bin"))?;
        std::fs::create_dir_all(folder.join("export"))?;
        std::fs::write(folder.join("export/file"), "served\n")?;
        let (path, at) = (std::env::var("PATH")?, folder.display());
        let script = format!(
            "#!/bin/sh\nPATH={path}\n[ \"$1 $2\" = '-t nfs' ] || exec mount \"$@\"\n\
             printf '%s\\n' \"$*\" >>{at}/asked\n\
             case \"$*\" in *closed.example:*)\n  if [ ! -e {at}/open ]; then\n\
             \x20   echo 'mount.nfs: access denied by server while mounting closed.example:/export' >&2\n    exit 32\n  fi\n\
             esac\nfor last; do :; done\nmount --bind {at}/export \"$last\" || exit\n\
             case \"$4,\" in ro,*|*,ro,*) mount -o remount,bind,ro \"$last\" ;; esac\n"
        );
        let program = folder.join("bin/mount");
        std::fs::write(&program, script)?;
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755))?;
        Ok(Mount { folder })
    }

    fn path(&self) -> Result<String> {
        Ok(format!("{}:{}", self.folder.join("bin").display(), std::env::var("PATH")?))
    }

    /// The arguments of each time so far.
    fn asked(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.folder.join("asked")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }
}

fn reads(volume: &Value) -> Value {
    let mounts = json!({"volumeMounts": [{"name": "files", "mountPath": "/files"}]});
    let script = "cat /files/file; touch /files/$HOSTNAME 2>&1 || true; exec sleep 1000";
    json!({"automountServiceAccountToken": false, "volumes": [with_name(volume)],
        "containers": [Pods::shell(script, &mounts)]})
}

fn with_name(volume: &Value) -> Value {
    let mut volume = volume.clone();
    volume["name"] = json!("files");
    volume
}

/// Where the volume of a pod is mounted.
fn place(pods: &Pods, pod: &str, volume: &str) -> Result<String> {
    let pod = pods.server.get("pod", pod)?;
    let uid = pod["metadata"]["uid"].as_str().context("a uid")?;
    let folder = pods.node.dir.join("kubelet/pods").join(uid).join("volumes/kubernetes.io~nfs").join(volume);
    Ok(folder.display().to_string())
}

fn log(pods: &Pods, pod: &str) -> Result<String> {
    let mut said = String::new();
    pods.node.wait_until(&format!("{pod} reads"), PATIENCE, || {
        said = pods.server.kubectl(&["logs", pod])?;
        Ok(!said.is_empty())
    })?;
    Ok(said)
}

/// A pod with a volume runs, and the program was asked this, with `PLACE` for where.
fn mounted_as(pods: &Pods, mount: &Mount, pod: &str, spec: &Value, (volume, asked): (&str, &str)) -> Result<()> {
    pods.create(pod, spec)?;
    pods.wait_phase(pod, "Running")?;
    let said = log(pods, pod)?;
    ensure!(said.starts_with("served\n"), "{said}");
    let want = asked.replace("PLACE", &place(pods, pod, volume)?);
    ensure!(mount.asked().contains(&want), "{want} is not among {:#?}", mount.asked());
    let read_only = asked.contains("ro ");
    pods.node.wait_until("it tried to write", PATIENCE, || {
        let refused = pods.server.kubectl(&["logs", pod])?.contains("Read-only file system");
        Ok(refused == read_only && mount.folder.join("export").join(pod).exists() != read_only)
    })
}

/// A volume with options, and a claim that is bound to it.
fn claimed(pods: &Pods, name: &str, (annotations, options): (Value, Value)) -> Result<()> {
    let size = json!({"storage": "1Gi"});
    let claim = json!({"namespace": "default", "name": name});
    pods.server.create(&json!({"apiVersion": "v1", "kind": "PersistentVolume",
        "metadata": {"name": format!("pv-{name}"), "annotations": annotations},
        "spec": {"capacity": size, "accessModes": ["ReadWriteMany"], "claimRef": claim, "storageClassName": "",
            "mountOptions": options, "nfs": {"server": "files.example", "path": "/export"}}}))?;
    pods.server.create(&json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name},
        "spec": {"accessModes": ["ReadWriteMany"], "volumeName": format!("pv-{name}"), "storageClassName": "",
            "resources": {"requests": size}}}))
}

fn refused(pods: &Pods, mount: &Mount) -> Result<()> {
    pods.create("closed", &reads(&json!({"nfs": {"server": "closed.example", "path": "/export"}})))?;
    let arguments = format!("-t nfs closed.example:/export {}", place(pods, "closed", "files")?);
    let words = format!(
        "MountVolume.SetUp failed for volume \"files\" : mount failed: exit status 32\nMounting command: mount\nMounting \
         arguments: {arguments}\nOutput: mount.nfs: access denied by server while mounting closed.example:/export\n"
    );
    pods.node.wait_until("the refusal is told", PATIENCE, || {
        let told = pods.events("closed", "FailedMount")?;
        ensure!(told.iter().all(|said| said.trim() == words.trim()), "{told:#?}, not {words:?}");
        Ok(!told.is_empty())
    })?;
    ensure!(pods.server.get("pod", "closed")?["status"]["phase"] == "Pending", "it does not begin without its files");
    std::fs::write(mount.folder.join("open"), "")?;
    pods.wait_phase("closed", "Running")?;
    Ok(())
}

#[test]
fn exports_are_mounted_as_the_host_mounts_them() -> Result<()> {
    if tests::no_node() {
        return Ok(());
    }
    let mount = Mount::new()?;
    let path = mount.path()?;
    let server = ApiServer::start("nfs", &[])?;
    let node = Node::start_with("nfs-node", &server, "", &[("PATH", path.as_str())])?;
    let pods = Pods { node, server };
    let inline = |nfs: Value| reads(&json!({ "nfs": nfs }));
    let claim = |name: &str, read_only: bool| {
        reads(&json!({"persistentVolumeClaim": {"claimName": name, "readOnly": read_only}}))
    };
    claimed(&pods, "options", (json!({}), json!(["nfsvers=4.1", "hard", "nfsvers=4.1"])))?;
    let before = json!({"volume.beta.kubernetes.io/mount-options": "soft,nolock"});
    claimed(&pods, "annotated", (before, json!(["hard"])))?;
    let cases = [
        (
            "plain",
            inline(json!({"server": "files.example", "path": "/export"})),
            "files",
            "-t nfs files.example:/export PLACE",
        ),
        (
            "read-only",
            inline(json!({"server": "files.example", "path": "/export", "readOnly": true})),
            "files",
            "-t nfs -o ro files.example:/export PLACE",
        ),
        ("six", inline(json!({"server": "fd00::1", "path": "/export"})), "files", "-t nfs [fd00::1]:/export PLACE"),
        ("claimed", claim("options", false), "pv-options", "-t nfs -o hard,nfsvers=4.1 files.example:/export PLACE"),
        (
            "claimed-read-only",
            claim("options", true),
            "pv-options",
            "-t nfs -o hard,nfsvers=4.1,ro files.example:/export PLACE",
        ),
        ("annotated", claim("annotated", false), "pv-annotated", "-t nfs -o nolock,soft files.example:/export PLACE"),
    ];
    for (name, spec, volume, asked) in &cases {
        mounted_as(&pods, &mount, name, spec, (volume, asked))?;
    }
    refused(&pods, &mount)?;
    let place = place(&pods, "plain", "files")?;
    pods.server.kubectl(&["delete", "pods", "--all", "--timeout=60s"])?;
    let (table, own) = (std::fs::read_to_string("/proc/self/mounts")?, pods.node.dir.display().to_string());
    let left: Vec<&str> =
        table.lines().filter(|line| line.contains(&own) && line.contains("kubernetes.io~nfs")).collect();
    ensure!(left.is_empty(), "nothing stays mounted: {left:?}");
    pods.node.wait_until("its folder is gone", PATIENCE, || Ok(!std::path::Path::new(&place).exists()))?;
    ensure!(mount.folder.join("export/file").exists(), "what is served stays");
    Ok(())
}
