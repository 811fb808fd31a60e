//! Which ids of the node pods' user namespaces are made of.
//!
//! A node that has a user `kubelet` and `getsubids` gives the ids that it has set apart for that user, one range that is
//! the same for users and groups. Any other node gives all from `idsPerPod` on.
//!
//! The user is looked for first: `getsubids` may ask far away, and what it says of an unknown user cannot be told from
//! what it says when nobody answers.
//!
//! Followed: `getKubeletMappings`, `MakeUserNsManager`.

use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Whose ids they are.
const USER: &str = "kubelet";
const TOOL: &str = "getsubids";

/// `idsPerPod` by default, and what it has to be a multiple of.
pub const IDS_PER_POD: u32 = 65_536;

/// Ids of the node that pods may have, in parts of equal size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UserIds {
    pub first: u32,
    /// Of all of them together.
    pub length: u32,
    pub per_pod: u32,
}

impl UserIds {
    /// All but the first `per_pod`, which are the node's own.
    pub fn all(per_pod: u32) -> Self {
        Self { first: per_pod, length: (u32::MAX - per_pod).saturating_add(1), per_pod }
    }

    /// What this node gives to pods, of which there are `pods` at most. Blocks, for as long as `getsubids` takes.
    ///
    /// # Errors
    /// The kubelet's text: what is set apart cannot be had, or pods cannot be made of it. The operator's to mend.
    pub fn of_node(per_pod: u32, pods: u32) -> Result<Self, String> {
        let known = match nix::unistd::User::from_name(USER) {
            Ok(user) => user.is_some(),
            // What a machine without /etc/passwd says.
            Err(nix::errno::Errno::ENOENT) => false,
            Err(error) => return Err(format!("kubelet mappings: user: lookup: {error}")),
        };
        Self::with(per_pod, pods, known, std::env::var_os("PATH").as_deref())
    }

    fn with(per_pod: u32, pods: u32, user_known: bool, path: Option<&OsStr>) -> Result<Self, String> {
        let tool = path.filter(|_| user_known).and_then(find);
        let (first, length) = match tool {
            Some(tool) => asked(&tool).map_err(|why| format!("kubelet mappings: {why}"))?,
            None => {
                let all = Self::all(per_pod);
                (all.first, all.length)
            }
        };
        check(Self { first, length, per_pod }, pods)
    }
}

fn check(ids: UserIds, pods: u32) -> Result<UserIds, String> {
    let UserIds { first, length, per_pod } = ids;
    if per_pod == 0 || !per_pod.is_multiple_of(IDS_PER_POD) {
        return Err(format!("kubelet user namespace length {per_pod} is not a multiple of {IDS_PER_POD}"));
    }
    if !first.is_multiple_of(per_pod) {
        return Err(format!("kubelet user assigned ID {first} is not a multiple of {per_pod}"));
    }
    if first < per_pod {
        return Err(format!("kubelet user assigned ID {first} must be greater or equal to {per_pod}"));
    }
    if !length.is_multiple_of(per_pod) {
        return Err(format!("kubelet user assigned IDs length {length} is not a multiple of {per_pod}"));
    }
    if length / per_pod < pods {
        return Err(format!("kubelet user assigned IDs are not enough to support {pods} pods"));
    }
    Ok(ids)
}

/// The tool by the folders of `PATH`.
fn find(path: &OsStr) -> Option<PathBuf> {
    let runs = |file: &Path| file.metadata().is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0);
    std::env::split_paths(path).map(|folder| folder.join(TOOL)).find(|file| runs(file))
}

fn asked(tool: &Path) -> Result<(u32, u32), String> {
    let ask = |what: &[&str]| -> Result<Vec<u8>, String> {
        let output = Command::new(tool).args(what).arg(USER).output().map_err(|e| e.to_string())?;
        match output.status.code() {
            Some(0) => Ok(output.stdout),
            Some(code) => Err(format!("exit status {code}")),
            None => Err("it was killed".into()),
        }
    };
    let users = ask(&[]).map_err(|why| format!("error retrieving additional uids for user {USER:?}: {why}"))?;
    let groups = ask(&["-g"]).map_err(|_| format!("error retrieving additional gids for user {USER:?}"))?;
    if users != groups {
        return Err(format!("mismatched subuids and subgids for user {USER:?}"));
    }
    parse(&String::from_utf8_lossy(&users))
}

/// First id and length by the one line that there may be: `0: kubelet 65536 2147483648`.
fn parse(output: &str) -> Result<(u32, u32), String> {
    let line = output.trim_matches('\n');
    if line.contains('\n') {
        return Err(format!("error parsing line {output:?}: it must contain only one line"));
    }
    let [_, _, first, length] = line.split_whitespace().collect::<Vec<_>>()[..] else {
        return Err(format!("invalid line {output:?}"));
    };
    let number = |text: &str| {
        let why = match text.bytes().all(|b| b.is_ascii_digit()) {
            true => "value out of range",
            false => "invalid syntax",
        };
        let parsed = text.parse().ok().filter(|_| !text.starts_with('+'));
        parsed.ok_or_else(|| format!("error parsing line {output:?}: strconv.ParseUint: parsing {text:?}: {why}"))
    };
    Ok((number(first)?, number(length)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A `getsubids` that says these of users and of groups.
    fn with_tool(name: &str, users: &str, groups: &str, test: impl FnOnce(&OsStr)) {
        let folder = std::env::temp_dir().join(format!("getsubids-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let script =
            format!("#!/bin/sh\n[ \"$1\" = -g ] && {{ {groups}; exit; }}\n[ \"$1\" = kubelet ] && {{ {users}; }}\n");
        let tool = folder.join(TOOL);
        std::fs::write(&tool, script).unwrap();
        std::fs::set_permissions(&tool, std::fs::Permissions::from_mode(0o755)).unwrap();
        test(folder.as_os_str());
        std::fs::remove_dir_all(&folder).unwrap();
    }

    fn of(name: &str, users: &str, groups: &str, per_pod: u32) -> Result<UserIds, String> {
        let mut found = None;
        with_tool(name, users, groups, |path| found = Some(UserIds::with(per_pod, 110, true, Some(path))));
        found.unwrap()
    }

    #[test]
    fn what_is_set_apart_for_the_user_is_what_pods_get() {
        let line = "echo 0: kubelet 131072 7208960";
        let ids = UserIds { first: 131_072, length: 7_208_960, per_pod: 65_536 };
        assert_eq!(of("range", line, line, 65_536), Ok(ids));
        with_tool("nobody", line, line, |path| {
            assert_eq!(UserIds::with(65_536, 110, false, Some(path)), Ok(UserIds::all(65_536)), "no such user");
        });
        let nowhere = Path::new("/nowhere").as_os_str();
        assert_eq!(UserIds::with(65_536, 110, true, Some(nowhere)), Ok(UserIds::all(65_536)), "no such tool");
        assert_eq!(UserIds::all(65_536), UserIds { first: 65_536, length: 4_294_901_760, per_pod: 65_536 });
    }

    #[test]
    fn what_pods_cannot_be_made_of_is_refused_in_the_kubelets_words() {
        let echo = |text: &str| format!("printf '{text}'");
        let same = |name: &str, text: &str, per_pod| of(name, &echo(text), &echo(text), per_pod).unwrap_err();
        let good = echo("0: kubelet 131072 7208960\\n");
        let cases = [
            (
                of("two", &good, &echo("0: kubelet 65536 7208960\\n"), 65_536).unwrap_err(),
                "kubelet mappings: mismatched subuids and subgids for user \"kubelet\"",
            ),
            (
                of("fails", "exit 1", &good, 65_536).unwrap_err(),
                "kubelet mappings: error retrieving additional uids for user \"kubelet\": exit status 1",
            ),
            (
                of("fails-groups", &good, "exit 1", 65_536).unwrap_err(),
                "kubelet mappings: error retrieving additional gids for user \"kubelet\"",
            ),
            (
                same("lines", "0: kubelet 1 2\\n1: kubelet 3 4\\n", 65_536),
                "kubelet mappings: error parsing line \"0: kubelet 1 2\\n1: kubelet 3 4\\n\": it must contain only one line",
            ),
            (same("none", "", 65_536), "kubelet mappings: invalid line \"\""),
            (
                same("words", "0: kubelet x 2", 65_536),
                "kubelet mappings: error parsing line \"0: kubelet x 2\": strconv.ParseUint: parsing \"x\": invalid syntax",
            ),
            (
                same("large", "0: kubelet 65536 4294967296", 65_536),
                "kubelet mappings: error parsing line \"0: kubelet 65536 4294967296\": strconv.ParseUint: parsing \
                 \"4294967296\": value out of range",
            ),
            (
                same("uneven", "0: kubelet 65537 7208960", 65_536),
                "kubelet user assigned ID 65537 is not a multiple of 65536",
            ),
            (
                same("root", "0: kubelet 0 7208960", 65_536),
                "kubelet user assigned ID 0 must be greater or equal to 65536",
            ),
            (
                same("rest", "0: kubelet 65536 7208961", 65_536),
                "kubelet user assigned IDs length 7208961 is not a multiple of 65536",
            ),
            (
                same("few", "0: kubelet 131072 7208960", 131_072),
                "kubelet user assigned IDs are not enough to support 110 pods",
            ),
            (
                same("odd", "0: kubelet 65536 7208960", 70_000),
                "kubelet user namespace length 70000 is not a multiple of 65536",
            ),
        ];
        for (told, want) in cases {
            assert_eq!(told, want);
        }
    }
}
