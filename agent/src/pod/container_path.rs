//! A path inside a container as the kubelet hands it to the runtime.
//!
//! Followed: `MakeAbsolutePath`, which begins every path with a slash and cleans it as Go's `filepath.Clean`.

/// The path from the root of the container, without empty parts, `.` and `..`.
pub fn absolute(path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            // Nothing is above the root.
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    format!("/{}", parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_path_begins_at_the_root_and_is_clean() {
        for (path, wanted) in
            [("/dev/log", "/dev/log"), ("rel/x", "/rel/x"), ("//a/./b//c/../d/", "/a/b/d"), ("../..", "/"), ("", "/")]
        {
            assert_eq!(absolute(path), wanted, "{path}");
        }
    }
}
