//! From the path as it was sent to the path that is meant: what Go's `ServeMux` does before any handler sees a request.
//!
//! A path that is not in its shortest form is answered with a redirect to that form, whoever asks; so is a folder
//! without its slash. Both happen on the path as sent, so an encoded `%2e%2e` is no step up but a name.

/// What a request's path leads to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Meant {
    /// Percent signs decoded.
    Path(String),
    /// The same place by its proper name.
    Elsewhere(String),
    /// A name with a slash in it where no place has one.
    Nowhere,
    /// A percent sign that begins nothing.
    Malformed,
}

/// `folders` have a slash at their end and nothing at the path without it.
pub(super) fn meant(sent: &str, folders: &[&'static str]) -> Meant {
    let clean = clean(sent);
    let Some(path) = decoded(&clean) else { return Meant::Malformed };
    let of_folder = |folder: &&&str| folder.strip_suffix('/') == Some(path.as_str());
    if let Some(folder) = folders.iter().find(of_folder).filter(|_| !hides_a_slash(&clean)) {
        return Meant::Elsewhere((*folder).to_owned());
    }
    if clean != sent {
        return Meant::Elsewhere(clean);
    }
    if hides_a_slash(sent) { Meant::Nowhere } else { Meant::Path(path) }
}

/// Whether a segment that names a place, not something below it, holds an encoded slash.
fn hides_a_slash(sent: &str) -> bool {
    let mut segments = sent.trim_start_matches('/').split('/');
    let hidden = |segment: &str| segment.to_ascii_lowercase().contains("%2f");
    let Some(first) = segments.next() else { return false };
    // Below these every name is a place of its own.
    let deep = match decoded(first).as_deref() {
        Some("metrics" | "healthz") => usize::MAX,
        Some("debug") => 1,
        _ => 0,
    };
    hidden(first) || segments.take(deep).any(hidden)
}

/// Without empty, `.` and `..` segments; a slash at the end stays.
fn clean(path: &str) -> String {
    let mut kept: Vec<&str> = Vec::new();
    for segment in path.split('/') {
        match segment {
            "" | "." => {}
            ".." => {
                kept.pop();
            }
            name => kept.push(name),
        }
    }
    let mut out = String::with_capacity(path.len() + 1);
    for segment in &kept {
        out.push('/');
        out.push_str(segment);
    }
    // As Go keeps it: what was written with a slash at its end is a folder, a final dot is not.
    if path.ends_with('/') || kept.is_empty() {
        out.push('/');
    }
    out
}

fn decoded(text: &str) -> Option<String> {
    if !text.contains('%') {
        return Some(text.to_owned());
    }
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            out.push(byte);
            continue;
        }
        let mut digit = || char::from(bytes.next()?).to_digit(16);
        let value = digit()? * 16 + digit()?;
        out.push(u8::try_from(value).ok()?);
    }
    Some(String::from_utf8_lossy(&out).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_redirected_to_their_shortest_form() {
        let of = |path| meant(path, &["/stats/"]);
        let elsewhere = |path: &str| Meant::Elsewhere(path.into());
        assert_eq!(of("//pods"), elsewhere("/pods"));
        assert_eq!(of("/pods/../configz"), elsewhere("/configz"));
        assert_eq!(of("/../../x/./"), elsewhere("/x/"));
        assert_eq!(of("/stats"), elsewhere("/stats/"));
        assert_eq!(of("/st%61ts"), elsewhere("/stats/"));
        assert_eq!(of("//stats"), elsewhere("/stats/"), "in one step");
        assert_eq!(of("/pods/"), Meant::Path("/pods/".into()));
    }

    #[test]
    fn encoded_characters_mean_themselves_and_encoded_dots_no_step_up() {
        assert_eq!(meant("/%70ods", &[]), Meant::Path("/pods".into()));
        assert_eq!(meant("/logs/%2e%2e/shadow", &[]), Meant::Path("/logs/../shadow".into()));
        for place in [
            "/metrics%2Fresource",
            "/healthz%2fping",
            "/pods%2Fx",
            "/exec%2Fns/p/c",
            "/metrics/a%2Fb",
            "/debug/pprof%2Fheap",
        ] {
            assert_eq!(meant(place, &[]), Meant::Nowhere, "{place}");
        }
        assert_eq!(meant("/logs/a%2Fb", &[]), Meant::Path("/logs/a/b".into()));
        assert_eq!(meant("/a%2", &[]), Meant::Malformed);
        assert_eq!(meant("/a%zz", &[]), Meant::Malformed);
    }
}
