//! `kubeletCgroups`: the cgroup that the agent itself is to run in, so that what it uses is counted and limited apart.

use std::path::Path;

/// Makes the cgroup below `mount` and moves this process there. What cannot be done is told and left: the agent works in
/// any cgroup.
pub fn enter(mount: &Path, name: &str) {
    let folder = mount.join(name.trim_matches('/'));
    let moved = std::fs::create_dir_all(&folder)
        .and_then(|()| std::fs::write(folder.join("cgroup.procs"), std::process::id().to_string()));
    match moved {
        Ok(()) => tracing::info!(cgroup = name, "runs in the cgroup of kubeletCgroups"),
        Err(error) => {
            tracing::warn!(cgroup = %folder.display(), %error, "cannot move to the cgroup of kubeletCgroups");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_process_is_written_into_the_cgroup_that_is_named() {
        let mount = std::env::temp_dir().join(format!("own-cgroup-{}", std::process::id()));
        enter(&mount, "/system.slice/agent");
        let written = std::fs::read_to_string(mount.join("system.slice/agent/cgroup.procs")).expect("written");
        assert_eq!(written, std::process::id().to_string());
        std::fs::remove_dir_all(mount).expect("ours");
    }
}
