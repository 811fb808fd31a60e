//! Settings of the kernel that a node relies on: whoever runs out of memory is killed and not the machine, and a kernel
//! that is broken starts again.
//!
//! Followed: `setupKernelTunables` of the kubelet's container manager.

use std::path::Path;

/// Where the settings are, outside tests.
pub const SYSCTLS: &str = "/proc/sys";

/// Path below [`SYSCTLS`] and value.
const WANTED: &[(&str, i64)] = &[
    ("vm/overcommit_memory", 1),
    ("vm/panic_on_oom", 0),
    ("kernel/panic", 10),
    ("kernel/panic_on_oops", 1),
    ("kernel/keys/root_maxkeys", 1_000_000),
    ("kernel/keys/root_maxbytes", 25_000_000),
];

/// Sets what differs; what cannot be set is told and left, as it is in a container. With `protect`
/// (`protectKernelDefaults`) nothing is changed.
///
/// # Errors
/// With `protect`, all that differ, in the kubelet's words.
pub fn tune(root: &Path, protect: bool) -> Result<(), String> {
    let mut wrong = Vec::new();
    for (name, wanted) in WANTED {
        let path = root.join(name);
        let actual = std::fs::read_to_string(&path).map(|text| text.trim().to_owned());
        match actual {
            Ok(actual) if actual.parse() == Ok(*wanted) => {}
            Ok(actual) if protect => {
                wrong.push(format!("invalid kernel flag: {name}, expected value: {wanted}, actual value: {actual}"));
            }
            Err(error) if protect => wrong.push(format!("open {}: {error}", path.display())),
            Err(error) => tracing::warn!(%error, name, "cannot read a setting of the kernel"),
            Ok(actual) => match std::fs::write(&path, wanted.to_string()) {
                Ok(()) => tracing::info!(name, actual, wanted, "set a setting of the kernel"),
                Err(error) => tracing::warn!(%error, name, actual, wanted, "cannot set a setting of the kernel"),
            },
        }
    }
    match wrong.as_slice() {
        [] => Ok(()),
        [one] => Err(format!("failed to start ContainerManager: {one}")),
        all => Err(format!("failed to start ContainerManager: [{}]", all.join(", "))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_set_unless_they_are_protected() {
        let root = std::env::temp_dir().join(format!("sysctls-{}", crate::backoff::random_below(u32::MAX)));
        for (name, wanted) in WANTED {
            let path = root.join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, format!("{wanted}\n")).unwrap();
        }
        assert_eq!(tune(&root, true), Ok(()));
        let overcommit = root.join("vm/overcommit_memory");
        std::fs::write(&overcommit, "0\n").unwrap();
        let refused = tune(&root, true).unwrap_err();
        let words = "invalid kernel flag: vm/overcommit_memory, expected value: 1, actual value: 0";
        assert_eq!(refused, format!("failed to start ContainerManager: {words}"));
        assert_eq!(std::fs::read(&overcommit).unwrap(), b"0\n", "protected");
        std::fs::write(root.join("kernel/panic"), "1").unwrap();
        assert!(tune(&root, true).unwrap_err().ends_with("actual value: 1]"));
        assert_eq!(tune(&root, false), Ok(()));
        assert_eq!(std::fs::read(&overcommit).unwrap(), b"1");
        assert_eq!(tune(&root, true), Ok(()));
        std::fs::remove_dir_all(&root).unwrap();
        assert_eq!(tune(&root, false), Ok(()), "what is not there is left");
        assert!(tune(&root, true).is_err());
    }
}
