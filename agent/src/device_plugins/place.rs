//! Where plugins look for the agent: a folder that is fixed in the device plugin API, wherever the agent's files are.

use std::io;
use std::os::unix::fs::{DirBuilderExt as _, symlink};
use std::os::unix::net::UnixStream;
use std::path::Path;

/// `DevicePluginPath` of the API, which knows nothing of `--root-dir`.
pub const FIXED: &str = "/var/lib/kubelet/device-plugins";

/// Leads `fixed` to the agent's own folder, unless a folder is there or another agent is reached by it.
pub fn lead(fixed: &Path, own: &Path) {
    match try_lead(fixed, own) {
        Ok(true) => {}
        Ok(false) => tracing::info!(
            fixed = %fixed.display(), own = %own.display(),
            "another agent has the folder of device plugins; those that are to come here have to use this agent's own"
        ),
        Err(error) => tracing::warn!(%error, fixed = %fixed.display(), "device plugins will not find this agent"),
    }
}

/// Takes the way back that [`lead`] made: a link to nowhere would be in the way of whoever comes next.
pub fn leave(fixed: &Path, own: &Path) {
    if fixed != own
        && std::fs::read_link(fixed).is_ok_and(|to| to == own)
        && let Err(error) = std::fs::remove_file(fixed)
    {
        tracing::warn!(%error, fixed = %fixed.display(), "cannot remove the link of device plugins");
    }
}

fn try_lead(fixed: &Path, own: &Path) -> io::Result<bool> {
    if fixed == own || std::fs::read_link(fixed).is_ok_and(|to| to == own) {
        return Ok(true);
    }
    match std::fs::symlink_metadata(fixed) {
        Ok(there) if !there.is_symlink() => return Ok(false),
        Ok(_) if UnixStream::connect(fixed.join("kubelet.sock")).is_ok() => return Ok(false),
        // It leads to an agent that is gone.
        Ok(_) => std::fs::remove_file(fixed)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let parent = fixed.parent().unwrap_or(Path::new("/"));
            std::fs::DirBuilder::new().recursive(true).mode(0o750).create(parent)?;
        }
        Err(error) => return Err(error),
    }
    symlink(own, fixed).map(|()| true)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn the_fixed_folder_leads_to_the_agent_that_runs() {
        let root = std::env::temp_dir().join(format!("plugins-{}", crate::backoff::random_below(u32::MAX)));
        let (fixed, first, second) = (root.join("lib/device-plugins"), root.join("first"), root.join("second"));
        for own in [&first, &second] {
            std::fs::create_dir_all(own).unwrap();
        }
        assert!(try_lead(&fixed, &first).unwrap() && try_lead(&fixed, &first).unwrap());
        let listener = UnixListener::bind(first.join("kubelet.sock")).unwrap();
        assert!(!try_lead(&fixed, &second).unwrap(), "the first is there");
        assert_eq!(std::fs::read_link(&fixed).unwrap(), first);
        drop(listener);
        assert!(try_lead(&fixed, &second).unwrap(), "the first is gone");
        leave(&fixed, &first);
        assert_eq!(std::fs::read_link(&fixed).unwrap(), second, "it is the second's");
        leave(&fixed, &second);
        assert!(std::fs::symlink_metadata(&fixed).is_err());
        std::fs::create_dir(&fixed).unwrap();
        assert!(!try_lead(&fixed, &first).unwrap(), "somebody's own folder");
        assert!(try_lead(&fixed, &fixed).unwrap(), "the default is that folder");
        leave(&fixed, &fixed);
        assert!(fixed.is_dir());
        std::fs::remove_dir_all(root).unwrap();
    }
}
