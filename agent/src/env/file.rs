//! Variables from a file that another container of the pod has written (`fileKeyRef`).
//!
//! The form is a strict subset of the shell's: `NAME='value'`, values in single quotes and taken literally, over several
//! lines if need be; comments begin with `#`.
//!
//! Followed: `pkg/kubelet/util/env`.

use std::io::Read as _;
use std::path::Path;

use crate::volumes::open_inside;

/// No file of variables is as large: a container must not fill the node's memory by one.
const MAX_FILE_BYTES: u64 = 1 << 20;
const MAX_KEY_BYTES: usize = 128;
const MAX_VALUE_BYTES: usize = 32 * 1024;

/// The value of a key below a volume's directory; `None` when the file does not have it.
///
/// # Errors
/// The kubelet's text: the file cannot be read or is not in the form.
pub fn value(volume: &Path, path: &str, key: &str) -> Result<Option<String>, String> {
    if key.len() > MAX_KEY_BYTES {
        return Err(format!("environment variable key {key:?} exceeds maximum length of {MAX_KEY_BYTES} characters"));
    }
    let text = read(volume, path).map_err(|error| {
        tracing::debug!(%error, volume = %volume.display(), path, "cannot read a file of variables");
        "couldn't parse env file".to_owned()
    })?;
    let found = find(&text, key).map_err(|why| {
        tracing::debug!(why, volume = %volume.display(), path, "not a file of variables");
        "couldn't parse env file".to_owned()
    })?;
    match found {
        Some(value) if value.len() > MAX_VALUE_BYTES => {
            Err(format!("environment variable value for key {key:?} exceeds maximum size of {MAX_VALUE_BYTES} bytes"))
        }
        found => Ok(found.filter(|value| !value.is_empty())),
    }
}

/// The text, unless symbolic links lead out of the volume: what a container writes must not name files of the node. Nor
/// must it keep who reads it waiting, as a pipe does, or never end, as some devices do.
fn read(volume: &Path, path: &str) -> std::io::Result<String> {
    let file = open_inside(volume, Path::new(path.trim_start_matches('/')))?;
    let mut text = String::new();
    if file.take(MAX_FILE_BYTES + 1).read_to_string(&mut text)? as u64 > MAX_FILE_BYTES {
        return Err(std::io::Error::other("the file is too large"));
    }
    Ok(text)
}

fn find(text: &str, key: &str) -> Result<Option<String>, String> {
    let mut lines = text.lines().enumerate();
    while let Some((at, line)) = lines.next() {
        let number = at + 1;
        let wrong = |what: &str| format!("invalid environment variable format at line {number}: {what}");
        let line = line.trim_start_matches([' ', '\t']);
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (name, value) = line.split_once('=').ok_or_else(|| wrong("missing '='"))?;
        if name.trim_end_matches([' ', '\t']).is_empty() {
            return Err(wrong("empty variable name"));
        }
        if name.ends_with([' ', '\t']) {
            return Err(wrong("whitespace before '=' is not allowed"));
        }
        // The shell takes `A= 'b'` as an empty value.
        if value.starts_with([' ', '\t']) {
            if name == key {
                return Ok(None);
            }
            continue;
        }
        let Some(mut rest) = value.strip_prefix('\'') else {
            return Err(wrong("value must be enclosed in single quotes"));
        };
        let mut value = String::new();
        loop {
            if let Some((last, after)) = rest.split_once('\'') {
                value.push_str(last);
                let after = after.trim_start_matches([' ', '\t']);
                if !after.is_empty() && !after.starts_with('#') {
                    return Err(wrong("unexpected content after closing quote"));
                }
                break;
            }
            value.push_str(rest);
            value.push('\n');
            rest = lines.next().map(|(_, line)| line).ok_or_else(|| wrong("unclosed single quote"))?;
        }
        if name == key {
            return Ok(Some(value));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_literal_and_may_span_lines() {
        let text = "# all\n A='x y' # why\nB='one\n$two'\nC= 'no'\n";
        assert_eq!(find(text, "A").unwrap().as_deref(), Some("x y"));
        assert_eq!(find(text, "B").unwrap().as_deref(), Some("one\n$two"));
        assert_eq!(find(text, "C").unwrap(), None);
        assert_eq!(find(text, "D").unwrap(), None);
    }

    /// A pipe, which a container can make there as well, held up the agent for ever; a device filled its memory.
    #[test]
    fn only_files_of_the_volume_are_read() {
        let root = std::env::temp_dir().join(format!("env-file-{}", std::process::id()));
        std::fs::create_dir_all(root.join("volume/sub")).unwrap();
        std::fs::write(root.join("outside"), "A='b'").unwrap();
        std::fs::write(root.join("volume/inside"), "A='b'").unwrap();
        let large = std::fs::File::create(root.join("volume/large")).unwrap();
        large.set_len(MAX_FILE_BYTES + 1).unwrap();
        for (link, to) in [("up", "../outside"), ("down", "sub/../inside"), ("device", "/dev/zero")] {
            std::os::unix::fs::symlink(to, root.join("volume").join(link)).unwrap();
        }
        nix::unistd::mkfifo(&root.join("volume/pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        let value = |path: &str| value(&root.join("volume"), path, "A");
        assert_eq!((value("inside"), value("down")), (Ok(Some("b".into())), Ok(Some("b".into()))));
        for path in ["up", "pipe", "device", "large", "sub", "none"] {
            assert_eq!(value(path), Err("couldn't parse env file".into()), "{path}");
        }
        std::fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn what_is_not_in_the_form_is_refused() {
        for text in ["A", "A=b", "A ='b'", "='b'", "A='b' c", "A='b"] {
            assert!(find(text, "Z").is_err(), "{text:?}");
        }
    }
}
