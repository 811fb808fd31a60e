//! Security contexts: what pod and container ask, as the runtime takes it.
//!
//! Container values win over pod values; what neither sets stays unset, except that the user of the image is resolved
//! here (the kubelet tells the runtime whom to run as) and that `seccompDefault` decides what an absent profile means.
//!
//! Followed: `kuberuntime/security_context_linux.go`, `pkg/securitycontext`.

use std::path::Path;

use proto::api::core::v1::{
    AppArmorProfile, Container, Pod, PodSecurityContext, SeLinuxOptions, SeccompProfile, SecurityContext,
};
use proto::cri;
use proto::cri::security_profile::ProfileType;

use super::spec::PodExt;
use super::step::network_mode;

/// Before the name of a container: the annotation that was a profile's place once.
const APPARMOR_ANNOTATION: &str = "container.apparmor.security.beta.kubernetes.io/";
const UNCONFINED_BY_ANNOTATION: &str = "unconfined";

/// The user that an image names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ImageUser {
    Uid(i64),
    Name(String),
}

impl ImageUser {
    /// An image that names none runs as root.
    pub fn of(image: &cri::Image) -> Self {
        match (&image.uid, image.username.as_str()) {
            (Some(uid), _) => Self::Uid(uid.value),
            (None, "") => Self::Uid(0),
            (None, name) => Self::Name(name.to_owned()),
        }
    }
}

/// What the node contributes.
#[derive(Debug, Clone, Copy)]
pub struct SecurityDefaults<'a> {
    /// Base of `Localhost` profiles.
    pub seccomp_dir: &'a Path,
    pub seccomp_default: bool,
}

/// Refuses a container that must not run as root and would (or might).
///
/// # Errors
/// The kubelet's message.
pub fn verify_non_root(pod: &Pod, container: &Container, user: &ImageUser) -> Result<(), String> {
    let own = container.security_context.as_ref();
    let whole_pod = pod.spec().security_context.as_ref();
    let required = own.and_then(|s| s.run_as_non_root).or(whole_pod.and_then(|s| s.run_as_non_root)).unwrap_or(false);
    if !required {
        return Ok(());
    }
    let place = format!("(pod: \"{}\", container: {})", pod.described(), container.name);
    match run_as_user(pod, container) {
        Some(0) => return Err(format!("container's runAsUser breaks non-root policy {place}")),
        Some(_) => return Ok(()),
        None => {}
    }
    match user {
        ImageUser::Uid(0) => Err(format!("container has runAsNonRoot and image will run as root {place}")),
        ImageUser::Uid(_) => Ok(()),
        ImageUser::Name(name) => Err(format!(
            "container has runAsNonRoot and image has non-numeric user ({name}), cannot verify user is non-root {place}"
        )),
    }
}

fn run_as_user(pod: &Pod, container: &Container) -> Option<i64> {
    let own = container.security_context.as_ref().and_then(|s| s.run_as_user);
    own.or(pod.spec().security_context.as_ref().and_then(|s| s.run_as_user))
}

/// The context of a container. `target` is the container whose process namespace an ephemeral container joins.
pub fn container_context(
    pod: &Pod,
    container: &Container,
    user: &ImageUser,
    target: Option<&str>,
    userns: Option<&cri::UserNamespace>,
    defaults: SecurityDefaults<'_>,
) -> cri::LinuxContainerSecurityContext {
    let empty_pod = PodSecurityContext::default();
    let own = container.security_context.clone().unwrap_or_default();
    let whole_pod = pod.spec().security_context.as_ref().unwrap_or(&empty_pod);
    let mut namespaces = namespace_options(pod, userns);
    // Where all processes of the pod or the node are seen already, there is nobody to join.
    if let Some(target) = target.filter(|_| namespaces.pid == cri::NamespaceMode::Container as i32) {
        namespaces.pid = cri::NamespaceMode::Target as i32;
        namespaces.target_id = target.to_owned();
    }
    let (masked_paths, readonly_paths) = match own.proc_mount.as_deref() {
        Some("Unmasked") => (Vec::new(), Vec::new()),
        _ => (masked_paths(), READONLY_PATHS.iter().map(|p| (*p).to_owned()).collect()),
    };
    let (mut run_as, mut run_as_username) = (run_as_user(pod, container), String::new());
    if run_as.is_none() {
        match user {
            ImageUser::Uid(uid) => run_as = Some(*uid),
            ImageUser::Name(name) => run_as_username = name.clone(),
        }
    }
    let privileged = own.privileged.unwrap_or(false);
    let apparmor = apparmor_of(pod, container);
    let seccomp = own.seccomp_profile.as_ref().or(whole_pod.seccomp_profile.as_ref());
    cri::LinuxContainerSecurityContext {
        capabilities: own.capabilities.as_ref().map(|c| cri::Capability {
            add_capabilities: c.add.clone(),
            drop_capabilities: c.drop.clone(),
            add_ambient_capabilities: Vec::new(),
        }),
        privileged,
        namespace_options: Some(namespaces),
        selinux_options: selinux(own.se_linux_options.as_ref().or(whole_pod.se_linux_options.as_ref())),
        run_as_user: run_as.map(|value| cri::Int64Value { value }),
        run_as_group: own.run_as_group.or(whole_pod.run_as_group).map(|value| cri::Int64Value { value }),
        run_as_username,
        readonly_rootfs: own.read_only_root_filesystem.unwrap_or(false),
        supplemental_groups: supplemental_groups(whole_pod),
        supplemental_groups_policy: groups_policy(whole_pod),
        // Privileged containers and those that gain CAP_SYS_ADMIN may always escalate; the API refuses the contrary.
        no_new_privs: own.allow_privilege_escalation == Some(false),
        masked_paths,
        readonly_paths,
        seccomp: Some(seccomp_profile(seccomp, defaults)),
        apparmor: apparmor.as_ref().map(apparmor_profile),
        apparmor_profile: apparmor.as_ref().map(apparmor_text).unwrap_or_default(),
        seccomp_profile_path: String::new(),
    }
}

/// The context of the sandbox.
pub fn sandbox_context(pod: &Pod, userns: Option<&cri::UserNamespace>) -> cri::LinuxSandboxSecurityContext {
    let spec = pod.spec();
    let empty = PodSecurityContext::default();
    let sc = spec.security_context.as_ref().unwrap_or(&empty);
    cri::LinuxSandboxSecurityContext {
        namespace_options: Some(namespace_options(pod, userns)),
        selinux_options: selinux(sc.se_linux_options.as_ref()),
        run_as_user: sc.run_as_user.map(|value| cri::Int64Value { value }),
        run_as_group: sc.run_as_group.map(|value| cri::Int64Value { value }),
        readonly_rootfs: false,
        supplemental_groups: supplemental_groups(sc),
        supplemental_groups_policy: groups_policy(sc),
        privileged: has_privileged(pod),
        // The pause process needs no more than the runtime's default, whatever the pod asks for its containers.
        seccomp: Some(cri::SecurityProfile {
            profile_type: ProfileType::RuntimeDefault as i32,
            localhost_ref: String::new(),
        }),
        apparmor: None,
        seccomp_profile_path: String::new(),
    }
}

fn has_privileged(pod: &Pod) -> bool {
    let spec = pod.spec();
    let privileged = |s: Option<&proto::api::core::v1::SecurityContext>| s.and_then(|s| s.privileged) == Some(true);
    spec.containers.iter().chain(&spec.init_containers).any(|c| privileged(c.security_context.as_ref()))
        || spec
            .ephemeral_containers
            .iter()
            .any(|c| privileged(c.ephemeral_container_common.as_ref().and_then(|c| c.security_context.as_ref())))
}

/// Namespaces of a pod; `userns` is its mapping when it has a user namespace of its own.
pub fn namespace_options(pod: &Pod, userns: Option<&cri::UserNamespace>) -> cri::NamespaceOption {
    use cri::NamespaceMode as Mode;
    let spec = pod.spec();
    let pid = if spec.host_pid {
        Mode::Node
    } else if spec.share_process_namespace.unwrap_or(false) {
        Mode::Pod
    } else {
        Mode::Container
    };
    cri::NamespaceOption {
        network: network_mode(pod) as i32,
        pid: pid as i32,
        ipc: if spec.host_ipc { Mode::Node } else { Mode::Pod } as i32,
        target_id: String::new(),
        userns_options: Some(match userns {
            Some(own) => own.clone(),
            None => cri::UserNamespace { mode: Mode::Node as i32, ..Default::default() },
        }),
    }
}

/// The group of the pod's files comes first.
fn supplemental_groups(sc: &PodSecurityContext) -> Vec<i64> {
    sc.fs_group.iter().chain(&sc.supplemental_groups).copied().collect()
}

fn groups_policy(sc: &PodSecurityContext) -> i32 {
    match sc.supplemental_groups_policy.as_deref() {
        Some("Strict") => cri::SupplementalGroupsPolicy::Strict as i32,
        _ => cri::SupplementalGroupsPolicy::Merge as i32,
    }
}

fn selinux(options: Option<&SeLinuxOptions>) -> Option<cri::SeLinuxOption> {
    options.map(|o| cri::SeLinuxOption {
        user: o.user.clone(),
        role: o.role.clone(),
        r#type: o.r#type.clone(),
        level: o.level.clone(),
    })
}

fn seccomp_profile(profile: Option<&SeccompProfile>, defaults: SecurityDefaults<'_>) -> cri::SecurityProfile {
    let plain = |kind: ProfileType| cri::SecurityProfile { profile_type: kind as i32, localhost_ref: String::new() };
    match profile.map(|p| (p.r#type.as_str(), p.localhost_profile.as_deref())) {
        None if defaults.seccomp_default => plain(ProfileType::RuntimeDefault),
        None => plain(ProfileType::Unconfined),
        Some(("Unconfined", _)) => plain(ProfileType::Unconfined),
        Some(("Localhost", Some(file))) if !file.is_empty() => cri::SecurityProfile {
            profile_type: ProfileType::Localhost as i32,
            localhost_ref: defaults.seccomp_dir.join(file).display().to_string(),
        },
        Some(_) => plain(ProfileType::RuntimeDefault),
    }
}

/// The container's profile. The API server makes a field of what the annotations of old say; nobody does for a static pod, so
/// that the annotation counts where the container has no field.
fn apparmor_of(pod: &Pod, container: &Container) -> Option<AppArmorProfile> {
    apparmor_by(pod, &container.name, container.security_context.as_ref())
}

fn apparmor_by(pod: &Pod, name: &str, context: Option<&SecurityContext>) -> Option<AppArmorProfile> {
    let own = context.and_then(|s| s.app_armor_profile.clone());
    let noted = || noted_apparmor(pod.annotation(&format!("{APPARMOR_ANNOTATION}{name}"))?);
    let of_pod = || pod.spec().security_context.as_ref()?.app_armor_profile.clone();
    own.or_else(noted).or_else(of_pod)
}

fn noted_apparmor(text: &str) -> Option<AppArmorProfile> {
    let (kind, name) = match text {
        UNCONFINED_BY_ANNOTATION => ("Unconfined", None),
        "runtime/default" => ("RuntimeDefault", None),
        other => ("Localhost", Some(other.strip_prefix("localhost/")?)),
    };
    Some(AppArmorProfile { r#type: kind.into(), localhost_profile: name.map(Into::into) })
}

/// Whether a container is to have a profile of the node's that has no name.
pub fn has_nameless_apparmor(pod: &Pod) -> bool {
    let spec = pod.spec();
    let common = spec.ephemeral_containers.iter().filter_map(|c| c.ephemeral_container_common.as_ref());
    let ephemeral = common.filter_map(|c| apparmor_by(pod, &c.name, c.security_context.as_ref()));
    let own = spec.init_containers.iter().chain(&spec.containers).filter_map(|c| apparmor_of(pod, c));
    let nameless = |text: Option<String>| text.is_none_or(|name| name.trim().is_empty());
    own.chain(ephemeral).any(|profile| profile.r#type == "Localhost" && nameless(profile.localhost_profile))
}

/// Whether the pod asks for AppArmor in any way.
pub fn wants_apparmor(pod: &Pod) -> bool {
    let spec = pod.spec();
    let of_pod = spec.security_context.as_ref().and_then(|s| s.app_armor_profile.as_ref());
    let own = spec.init_containers.iter().chain(&spec.containers).filter_map(|c| c.security_context.as_ref());
    let common = spec.ephemeral_containers.iter().filter_map(|c| c.ephemeral_container_common.as_ref());
    let own =
        own.chain(common.filter_map(|c| c.security_context.as_ref())).filter_map(|s| s.app_armor_profile.as_ref());
    let noted = pod.meta().annotations.iter().filter(|(key, _)| key.starts_with(APPARMOR_ANNOTATION));
    of_pod.into_iter().chain(own).any(|profile| profile.r#type != "Unconfined")
        || noted.into_iter().any(|(_, text)| text != UNCONFINED_BY_ANNOTATION)
}

fn apparmor_profile(profile: &AppArmorProfile) -> cri::SecurityProfile {
    let kind = match profile.r#type.as_str() {
        "Unconfined" => ProfileType::Unconfined,
        "Localhost" => ProfileType::Localhost,
        _ => ProfileType::RuntimeDefault,
    };
    let localhost_ref = profile.localhost_profile.clone().filter(|_| kind == ProfileType::Localhost);
    cri::SecurityProfile { profile_type: kind as i32, localhost_ref: localhost_ref.unwrap_or_default() }
}

/// The deprecated spelling that older runtimes read.
fn apparmor_text(profile: &AppArmorProfile) -> String {
    match (profile.r#type.as_str(), profile.localhost_profile.as_deref()) {
        ("Unconfined", _) => "unconfined".into(),
        ("Localhost", Some(name)) => format!("localhost/{name}"),
        _ => "runtime/default".into(),
    }
}

const MASKED_PATHS: [&str; 12] = [
    "/proc/asound",
    "/proc/acpi",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/sys/firmware",
    "/sys/devices/virtual/powercap",
];
const READONLY_PATHS: [&str; 5] = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

/// The fixed paths and the thermal throttling counters of the host's CPUs, which leak what neighbours do.
fn masked_paths() -> Vec<String> {
    static THERMAL: std::sync::LazyLock<Vec<String>> = std::sync::LazyLock::new(thermal_paths);
    MASKED_PATHS.iter().map(|p| (*p).to_owned()).chain(THERMAL.iter().cloned()).collect()
}

fn thermal_paths() -> Vec<String> {
    let Ok(entries) = std::fs::read_dir("/sys/devices/system/cpu") else { return Vec::new() };
    let mut numbers: Vec<u32> = entries
        .flatten()
        .filter_map(|e| e.file_name().to_str()?.strip_prefix("cpu")?.parse().ok())
        .filter(|n| Path::new(&thermal_path(*n)).exists())
        .collect();
    numbers.sort_unstable();
    numbers.into_iter().map(thermal_path).collect()
}

fn thermal_path(cpu: u32) -> String {
    format!("/sys/devices/system/cpu/cpu{cpu}/thermal_throttle")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::api::core::v1::{PodSpec, SecurityContext};

    fn pod(sc: PodSecurityContext) -> Pod {
        Pod { spec: Some(PodSpec { security_context: Some(sc), ..Default::default() }), ..Default::default() }
    }

    fn context(p: &Pod, c: &Container, user: &ImageUser) -> cri::LinuxContainerSecurityContext {
        let defaults = SecurityDefaults { seccomp_dir: Path::new("/r/seccomp"), seccomp_default: false };
        container_context(p, c, user, None, None, defaults)
    }

    #[test]
    fn container_values_win_and_groups_start_with_fs_group() {
        let p = pod(PodSecurityContext {
            run_as_user: Some(1001),
            run_as_group: Some(2001),
            fs_group: Some(3001),
            supplemental_groups: vec![4001, 4002],
            ..Default::default()
        });
        let own = Some(SecurityContext { run_as_user: Some(1000), run_as_group: Some(0), ..Default::default() });
        let sc = context(&p, &Container { security_context: own, ..Default::default() }, &ImageUser::Uid(7));
        assert_eq!(sc.run_as_user.unwrap().value, 1000);
        assert_eq!(sc.run_as_group.unwrap().value, 0);
        assert_eq!(sc.supplemental_groups, [3001, 4001, 4002]);
        assert_eq!(sc.seccomp.unwrap().profile_type, ProfileType::Unconfined as i32);
    }

    #[test]
    fn non_root_is_verified_against_spec_and_image() {
        let p = pod(PodSecurityContext { run_as_non_root: Some(true), ..Default::default() });
        let c = Container { name: "main".into(), ..Default::default() };
        assert!(verify_non_root(&p, &c, &ImageUser::Uid(0)).unwrap_err().contains("image will run as root"));
        assert!(verify_non_root(&p, &c, &ImageUser::Uid(5)).is_ok());
        assert!(
            verify_non_root(&p, &c, &ImageUser::Name("app".into())).unwrap_err().contains("non-numeric user (app)")
        );
        let own = Some(SecurityContext { run_as_user: Some(0), ..Default::default() });
        let c = Container { name: "zero".into(), security_context: own, ..Default::default() };
        assert!(verify_non_root(&p, &c, &ImageUser::Uid(5)).unwrap_err().starts_with("container's runAsUser breaks"));
    }

    /// Annotations of static pods used to say nothing.
    #[test]
    fn an_annotation_counts_where_the_container_has_no_profile() {
        let profile = |kind: &str| AppArmorProfile { r#type: kind.into(), ..Default::default() };
        let mut p = pod(PodSecurityContext::default());
        assert!(!wants_apparmor(&p));
        let mut told = |text: &str| {
            p.metadata.get_or_insert_default().annotations = [(format!("{APPARMOR_ANNOTATION}a"), text.into())].into();
            let own = |kind: Option<&str>| {
                let security_context =
                    kind.map(|kind| SecurityContext { app_armor_profile: Some(profile(kind)), ..Default::default() });
                Container { name: "a".into(), security_context, ..Default::default() }
            };
            p.spec.as_mut().unwrap().security_context.as_mut().unwrap().app_armor_profile = None;
            let wants = wants_apparmor(&p);
            p.spec.as_mut().unwrap().security_context.as_mut().unwrap().app_armor_profile = Some(profile("Pod"));
            let kind = |c: &Container| apparmor_of(&p, c).map_or(String::new(), |a| a.r#type);
            assert_eq!(kind(&own(Some("Own"))), "Own");
            assert_eq!(kind(&Container { name: "b".into(), ..Default::default() }), "Pod");
            (apparmor_text(&apparmor_of(&p, &own(None)).unwrap()), kind(&own(None)), wants)
        };
        let words = |text: &str, kind: &str, wants| (text.to_owned(), kind.to_owned(), wants);
        assert_eq!(told("unconfined"), words("unconfined", "Unconfined", false));
        assert_eq!(told("runtime/default"), words("runtime/default", "RuntimeDefault", true));
        assert_eq!(told("localhost/x"), words("localhost/x", "Localhost", true));
        assert_eq!(told("nonsense"), words("runtime/default", "Pod", true));
    }

    #[test]
    fn localhost_profiles_lie_below_the_root_directory() {
        let profile = SeccompProfile { r#type: "Localhost".into(), localhost_profile: Some("a/b.json".into()) };
        let own = Some(SecurityContext { seccomp_profile: Some(profile), ..Default::default() });
        let sc =
            context(&Pod::default(), &Container { security_context: own, ..Default::default() }, &ImageUser::Uid(0));
        assert_eq!(sc.seccomp.unwrap().localhost_ref, "/r/seccomp/a/b.json");
    }
}
