//! Starting one container: image, configuration, creation, start, postStart hook.
//!
//! Followed: kuberuntime `startContainer`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use proto::api::core::v1::{Container, Pod, Secret, Service};
use proto::cri;

use crate::carried::Carried;
use crate::env::{EnvContext, container_env};
use crate::events::EventType;
use crate::images::puller::Wanted;
use crate::objects::{ObjectError, Objects};
use crate::pleg::observed::Observed;
use crate::pod::container_config::{ContainerInputs, container_config};
use crate::pod::expand::NOT_TEXT;
use crate::pod::sandbox_config::log_directory;
use crate::pod::security::{ImageUser, SecurityDefaults, verify_non_root};
use crate::pod::spec::{ContainerKind, PodExt, find_container};
use crate::pod::step::{Kill, KillReason};
use crate::status::StartError;
use crate::volumes::{MountContext, PodVolumes, container_devices, container_mounts, groups};
use crate::{metrics, spans};

use super::kill::kill_one;
use super::round::next_try;
use super::starts::Starts;
use super::{Shared, hooks, late};

/// What starting needs beside the container.
pub struct StartContext<'a> {
    pub shared: &'a Arc<Shared>,
    pub pod: &'a Pod,
    pub observed: &'a Observed,
    pub sandbox_id: &'a str,
    pub sandbox: &'a cri::PodSandboxConfig,
    pub ips: &'a [String],
    pub volumes: &'a PodVolumes,
    pub secrets: &'a [Arc<Secret>],
    pub userns: Option<&'a cri::UserNamespace>,
    pub starts: &'a Starts,
    pub carried: &'a Carried,
    /// Images that are volumes, or why they cannot be had, by volume.
    pub image_volumes: &'a BTreeMap<String, Result<String, StartError>>,
}

fn failure(reason: &str, message: String) -> StartError {
    StartError { reason: reason.into(), message }
}

impl StartContext<'_> {
    /// Starts the container and returns its id; `target` names the container that an ephemeral one joins.
    ///
    /// # Errors
    /// The waiting reason and message; the event has been sent.
    pub async fn start(&self, container: &Container, target: Option<&str>) -> Result<String, StartError> {
        let kind = kind_word(self.pod, &container.name);
        metrics::STARTED_CONTAINERS.inc(&[kind]);
        let started = self.pull_and_start(container, target).await;
        if let Err(error) = &started {
            metrics::STARTED_CONTAINERS_ERRORS.inc(&[&error.reason, kind]);
        }
        started
    }

    async fn pull_and_start(&self, container: &Container, target: Option<&str>) -> Result<String, StartError> {
        let recorder = &self.shared.recorder;
        let event =
            |kind, reason: &str, message: String| recorder.container(self.pod, &container.name, kind, reason, message);
        let failed = |message: &str| event(EventType::Warning, "Failed", format!("Error: {message}"));

        for mount in &container.volume_mounts {
            if let Some(Err(error)) = self.image_volumes.get(&mount.name) {
                failed(&error.reason);
                return Err(error.clone());
            }
        }
        let wanted = Wanted {
            pod: self.pod,
            container: Some(&container.name),
            image: &container.image,
            policy: &container.image_pull_policy,
            carried: self.carried,
            status: &self.shared.status,
        };
        let pulled = self.shared.puller.ensure(wanted, self.sandbox, self.secrets).await;
        let image = pulled.inspect_err(|e| failed(&e.reason))?;
        let config = self.config(container, &image, target).await.map_err(|why| {
            failed(&why);
            failure("CreateContainerConfigError", why)
        })?;
        let mut config = config.ok_or_else(|| {
            failed(NOT_TEXT);
            failure("CreateContainerError", NOT_TEXT.to_owned())
        })?;
        if let Some(resources) = config.linux.as_mut().and_then(|linux| linux.resources.as_mut()) {
            self.shared.managers.place(self.pod, container, resources);
        }
        let attempt = config.metadata.as_ref().map_or(0, |m| m.attempt);
        if target.is_none() {
            let given = container.resources.clone().unwrap_or_default();
            self.shared.allocations.give(self.pod.uid(), &container.name, given);
        }
        let request = cri::CreateContainerRequest {
            pod_sandbox_id: self.sandbox_id.to_owned(),
            config: Some(config),
            sandbox_config: Some(self.sandbox.clone()),
        };
        let profile = localhost_profile(request.config.as_ref());
        let placed = request.config.as_ref().and_then(|c| c.linux.as_ref()?.resources.clone());
        let of_images = container.volume_mounts.iter().filter(|m| self.image_volumes.contains_key(&m.name)).count();
        // Also of what nobody waits for any more.
        let count = move |made| {
            let family = if made { &metrics::IMAGE_VOLUMES_MOUNTED } else { &metrics::IMAGE_VOLUMES_FAILED };
            family.add(&[], metrics::page::to_float(u64::try_from(of_images).unwrap_or(0)));
        };
        let created = late::container(&self.shared.cri, request, self.pod.name(), count).await;
        let id = created.map_err(|e| {
            failed(&e.message);
            // The runtime says that it cannot use the profile; where the mistake is, it leaves to the reader.
            let mistake = profile.and_then(|path| crate::pod::seccomp::mistake_in(&path));
            let message = mistake.map_or_else(|| e.message.clone(), |mistake| format!("{}: {mistake}", e.message));
            failure("CreateContainerError", message)
        })?;
        self.shared.managers.placed(&id, placed.as_ref());
        event(EventType::Normal, "Created", "Container created".into());
        // On a task of its own: it goes on when the pod ends meanwhile.
        let (cri, starting, under_way) = (self.shared.cri.clone(), id.clone(), self.starts.begin(&id));
        let started = tokio::spawn(spans::inherit(async move {
            let started = cri.start_container(&starting).await.map_err(|e| e.message);
            drop(under_way);
            started
        }));
        started.await.unwrap_or_else(|e| Err(e.to_string())).map_err(|message| {
            // Each try has an id of its own; without it the events of all tries are one.
            match id.as_str() {
                "" => failed(&message),
                id => failed(&message.replace(id, &container.name)),
            }
            failure("RunContainerError", message)
        })?;
        event(EventType::Normal, "Started", "Container started".into());
        self.link_log(container, &id, attempt);
        self.post_start(container, &id).await?;
        Ok(id)
    }

    /// `None` where [`container_config`] makes none.
    async fn config(
        &self,
        container: &Container,
        image: &cri::Image,
        target: Option<&str>,
    ) -> Result<Option<cri::ContainerConfig>, String> {
        let (shared, pod) = (self.shared, self.pod);
        let attempt = self.attempt(container);
        let host_ips = shared.host_ips();
        let services = services(&*shared.objects, pod).await.map_err(|e| e.to_string())?;
        let node = shared.node.borrow().clone();
        let context = EnvContext {
            pod_ips: self.ips,
            host_ips: &host_ips,
            node_name: &shared.config.node_name,
            node: &node,
            services: &services,
            volumes: self.volumes,
        };
        // Devices of claims come before those of plugins.
        let mut cdi_devices = shared.dra.container(pod, container)?;
        let from_plugins = shared.devices.container(pod, container).await?;
        cdi_devices.extend(from_plugins.cdi_devices);
        // Asked of every pod: on the host's network nobody has asked before.
        crate::dns_hosts::hostname(pod, &shared.config.dns)?;
        let own = container_env(pod, container, &context, &*shared.objects).await.map_err(|e| e.to_string())?;
        // What the pod sets wins over what a plugin sets.
        let of_plugins = from_plugins.envs.into_iter().filter(|(name, _)| !own.iter().any(|(n, _)| n == name));
        let mut envs: Vec<(String, Vec<u8>)> = of_plugins.map(|(name, value)| (name, value.into_bytes())).collect();
        envs.extend(own);
        // Those of plugins come first: what the pod mounts lies above them.
        let mut mounts = from_plugins.mounts;
        mounts.extend(self.mounts(container, &envs)?);
        map_users(&mut mounts, self.userns);
        let mut devices = from_plugins.devices;
        devices.extend(container_devices(container, self.volumes));
        let target = match target {
            Some(name) if !name.is_empty() => Some(self.target_id(name)?),
            _ => None,
        };
        let image_user = ImageUser::of(image);
        verify_non_root(pod, container, &image_user)?;
        let seccomp_dir = shared.config.root_dir.join("seccomp");
        let inputs = ContainerInputs {
            attempt,
            image_id: image.id.clone(),
            image_user,
            envs,
            mounts,
            devices,
            cdi_devices,
            annotations: from_plugins.annotations,
            target,
            resources: &shared.config.resources,
            userns: self.userns,
            stop_signals: shared.config.stop_signals,
            security: SecurityDefaults { seccomp_dir: &seccomp_dir, seccomp_default: shared.config.seccomp_default },
        };
        let Some(mut config) = container_config(pod, container, inputs) else { return Ok(None) };
        if let Some(context) = config.linux.as_mut().and_then(|linux| linux.security_context.as_mut()) {
            groups::add(pod, self.volumes, &mut context.supplemental_groups);
        }
        Ok(Some(config))
    }

    fn mounts(&self, container: &Container, envs: &[(String, Vec<u8>)]) -> Result<Vec<cri::Mount>, String> {
        let (shared, pod) = (self.shared, self.pod);
        let pod_dir = shared.pod_dir(pod.uid());
        // A container that brings its own hosts file keeps it; without an address there is nothing to write.
        let own_hosts = container.volume_mounts.iter().any(|m| m.mount_path.trim_end_matches('/') == "/etc/hosts");
        let mut hosts_file = None;
        if !own_hosts && (!self.ips.is_empty() || pod.spec().host_network) {
            let path = pod_dir.join("etc-hosts");
            std::fs::write(&path, crate::dns_hosts::etc_hosts(pod, self.ips, &shared.config.dns)?)
                .map_err(|e| format!("cannot write {}: {e}", path.display()))?;
            hosts_file = Some(path);
        }
        let mut log = None;
        if !container.termination_message_path.is_empty() {
            log = Some(termination_log(&pod_dir, &container.name).map_err(|e| format!("termination log: {e}"))?);
        }
        let context = MountContext {
            pod_dir: &pod_dir,
            volumes: self.volumes,
            envs,
            hosts_file: hosts_file.as_deref(),
            termination_log: log.as_deref(),
            image_volumes: self.image_volumes,
            recursive_read_only: shared.mounts_read_only_recursively(self.observed),
            selinux: crate::volumes::selinux::enabled(),
        };
        container_mounts(pod, container, &context).map_err(|e| e.to_string())
    }

    fn target_id(&self, name: &str) -> Result<String, String> {
        self.observed
            .container(name)
            .map(|c| c.id.clone())
            .ok_or_else(|| format!("unable to find target container {name}"))
    }

    fn attempt(&self, container: &Container) -> u32 {
        next_try(self.observed, &container.name, || {
            let dir = log_directory(self.pod, &self.shared.config.pod_logs_dir).join(&container.name);
            let entries = std::fs::read_dir(dir).ok()?.flatten();
            entries.filter_map(|e| e.file_name().to_str()?.split('.').next()?.parse::<u32>().ok()).max()
        })
    }

    /// The link that log collectors of old follow; losing it does no harm.
    fn link_log(&self, container: &Container, id: &str, attempt: u32) {
        let Some(dir) = &self.shared.config.log_links_dir else { return };
        let directory = log_directory(self.pod, &self.shared.config.pod_logs_dir);
        let log = crate::pleg::observed::container_log_path(&directory, &container.name, attempt);
        let link = dir.join(log_link_name(self.pod, &container.name, id));
        let made = std::fs::create_dir_all(dir).and_then(|()| std::os::unix::fs::symlink(&log, &link));
        if let Err(error) = made {
            tracing::debug!(%error, link = %link.display(), "could not link a container log");
        }
    }

    async fn post_start(&self, container: &Container, id: &str) -> Result<(), StartError> {
        let Some(hook) = container.lifecycle.as_ref().and_then(|l| l.post_start.as_ref()) else { return Ok(()) };
        // As the runtime tells it, which tells none of a pod on the host's network: the kubelet fails a request without a host
        // there, before and after.
        let ip = self.observed.ips().first().map_or("", String::as_str);
        let Err(why) = hooks::run(self.shared, self.pod, container, id, ip, hook).await else { return Ok(()) };
        tracing::debug!(pod = self.pod.name(), container = container.name, why, "postStart hook failed");
        self.tell(container, EventType::Warning, "FailedPostStartHook", "PostStartHook failed");
        let kill = Kill {
            container_id: id.to_owned(),
            name: container.name.clone(),
            message: "FailedPostStartHook".into(),
            reason: KillReason::PostStartHook,
        };
        if let Err(error) = kill_one(self.shared, self.pod, &kill, ip).await {
            tracing::warn!(%error, pod = self.pod.name(), container = container.name, "could not stop a container");
        }
        Err(failure("PostStartHookError", why))
    }

    fn tell(&self, container: &Container, kind: EventType, reason: &str, message: &str) {
        self.shared.recorder.container(self.pod, &container.name, kind, reason, message);
    }
}

/// The services that give the pod variables. A static pod starts with those that are known: it may be what the API server
/// runs in, and then nobody else would tell.
async fn services(objects: &dyn Objects, pod: &Pod) -> Result<Vec<Arc<Service>>, ObjectError> {
    match pod.is_static() {
        true => Ok(objects.known_services(pod.namespace())),
        false => objects.services(pod.namespace()).await,
    }
}

/// In a pod with users of its own all files are theirs as they would be the node's: volumes, what plugins give, and images,
/// for which a runtime needs to know it when it unpacks them.
fn map_users(mounts: &mut [cri::Mount], own: Option<&cri::UserNamespace>) {
    let Some(own) = own else { return };
    for mount in mounts {
        mount.uid_mappings.clone_from(&own.uids);
        mount.gid_mappings.clone_from(&own.gids);
    }
}

/// The kind of a container as metrics name it.
pub fn kind_word(pod: &Pod, container: &str) -> &'static str {
    match find_container(pod.spec(), container) {
        Some((ContainerKind::Init, _)) => "init_container",
        Some((ContainerKind::Ephemeral, _)) => "ephemeral_container",
        Some((ContainerKind::Regular, _)) | None => "container",
    }
}

/// The file of system call rules that the container is to have.
fn localhost_profile(config: Option<&cri::ContainerConfig>) -> Option<PathBuf> {
    let seccomp = config?.linux.as_ref()?.security_context.as_ref()?.seccomp.as_ref()?;
    Some(PathBuf::from(&seccomp.localhost_ref)).filter(|path| !path.as_os_str().is_empty())
}

/// `POD_NAMESPACE_CONTAINER-ID.log`, cut so that it fits a directory entry.
pub fn log_link_name(pod: &Pod, container: &str, id: &str) -> String {
    const MAX: usize = 255 - 4;
    let mut name = format!("{}_{}_{container}-{id}", pod.name(), pod.namespace());
    name.truncate(MAX);
    name + ".log"
}

/// A fresh file for the last words of one try; writable by whoever the container runs as.
fn termination_log(pod_dir: &Path, container: &str) -> std::io::Result<PathBuf> {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = pod_dir.join("containers").join(container);
    std::fs::create_dir_all(&dir)?;
    let nanos = crate::clock::unix_nanos();
    let path = dir.join(format!("{:08x}", crate::pod::hash::fnv1a_32(&nanos.to_le_bytes())));
    std::fs::File::create(&path)?;
    // The umask must not narrow it.
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o666))?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::{Answer, NoObjects};
    use proto::api::core::v1::ConfigMap;

    /// Without an API server no static pod started, not even the one that an API server is.
    #[tokio::test]
    async fn a_static_pod_starts_without_the_services_that_nobody_tells_of() {
        struct Unheard;
        impl Objects for Unheard {
            fn config_map<'a>(
                &'a self,
                namespace: &'a str,
                name: &'a str,
            ) -> Answer<'a, Result<Arc<ConfigMap>, ObjectError>> {
                NoObjects.config_map(namespace, name)
            }
            fn secret<'a>(&'a self, namespace: &'a str, name: &'a str) -> Answer<'a, Result<Arc<Secret>, ObjectError>> {
                NoObjects.secret(namespace, name)
            }
            fn services<'a>(&'a self, _: &'a str) -> Answer<'a, Result<Vec<Arc<Service>>, ObjectError>> {
                Box::pin(std::future::ready(Err(ObjectError::NotSynced)))
            }
            fn known_services(&self, _: &str) -> Vec<Arc<Service>> {
                vec![Arc::default()]
            }
            fn register(&self, _: &Pod) {}
            fn unregister(&self, _: &str) {}
        }
        let mut pod = Pod::default();
        assert!(matches!(services(&Unheard, &pod).await, Err(ObjectError::NotSynced)));
        let source = (crate::pod::labels::CONFIG_SOURCE.to_owned(), "file".to_owned());
        pod.metadata.get_or_insert_default().annotations.extend([source]);
        assert_eq!(services(&Unheard, &pod).await.map(|known| known.len()).ok(), Some(1));
    }

    /// Images and what device plugins mount belonged to nobody in such pods.
    #[test]
    fn every_mount_has_the_users_of_the_pod() {
        let volume = cri::Mount { host_path: "/volume".into(), ..Default::default() };
        let image = cri::Mount { image: Some(cri::ImageSpec::default()), ..Default::default() };
        let mut mounts = [volume, image];
        map_users(&mut mounts, None);
        assert!(mounts.iter().all(|mount| mount.uid_mappings.is_empty() && mount.gid_mappings.is_empty()));
        let ids = vec![cri::IdMapping { host_id: 65536, container_id: 0, length: 65536 }];
        let own = cri::UserNamespace { uids: ids.clone(), gids: ids.clone(), ..Default::default() };
        map_users(&mut mounts, Some(&own));
        assert!(mounts.iter().all(|mount| mount.uid_mappings == ids && mount.gid_mappings == ids));
    }
}
