//! Forms whose values are parts of the body (`multipart/form-data`), as Go's `mime/multipart` reads them.
//!
//! Values alone count: a part with a file name is a file, and nothing here takes files.

/// The boundary that a content type names, if it is that of a form in parts.
pub(super) fn boundary(content_type: &str) -> Option<String> {
    let (kind, parameters) = split(content_type);
    let boundary = parameter(&parameters, "boundary").filter(|b| !b.is_empty());
    boundary.filter(|_| kind.eq_ignore_ascii_case("multipart/form-data"))
}

/// The values by name; `None` for a body that is broken anywhere, of which nothing counts.
pub(super) fn values(body: &[u8], boundary: &str) -> Option<Vec<(String, String)>> {
    let delimiter = [b"--", boundary.as_bytes()].concat();
    let (mut rest, mut line_end) = (body, "\r\n");
    // What comes before the first delimiter means nothing.
    loop {
        let (line, after) = line(rest)?;
        rest = after;
        match line.strip_prefix(&delimiter[..]) {
            Some(tail) if tail.starts_with(b"--") => return Some(Vec::new()),
            Some(tail) if tail.trim_ascii().is_empty() => {
                line_end = if tail.ends_with(b"\r") { line_end } else { "\n" };
                break;
            }
            _ => {}
        }
    }
    let mut found = Vec::new();
    loop {
        let mut disposition = None;
        loop {
            let (head, after) = line(rest)?;
            rest = after;
            let head = std::str::from_utf8(head.trim_ascii_end()).ok()?;
            if head.is_empty() {
                break;
            }
            let (name, value) = head.split_once(':')?;
            if name.eq_ignore_ascii_case("content-disposition") {
                disposition.get_or_insert_with(|| value.trim().to_owned());
            }
        }
        let (content, after) = content(rest, &delimiter, line_end.as_bytes())?;
        if let Some(name) = disposition.and_then(|text| form_name(&text)) {
            found.push((name, String::from_utf8_lossy(content).into_owned()));
        }
        if after.starts_with(b"--") {
            return Some(found);
        }
        let (tail, after) = line(after)?;
        tail.trim_ascii().is_empty().then_some(())?;
        rest = after;
    }
}

/// What a part holds, and what comes after the delimiter that ends it.
fn content<'a>(rest: &'a [u8], delimiter: &[u8], line_end: &[u8]) -> Option<(&'a [u8], &'a [u8])> {
    if let Some(after) = rest.strip_prefix(delimiter) {
        return Some((&[], after));
    }
    let end = [line_end, delimiter].concat();
    let mut from = 0;
    loop {
        let at = from + rest.get(from..)?.windows(end.len()).position(|window| window == end)?;
        let after = rest.get(at + end.len()..)?;
        // A longer word that begins like the delimiter is none.
        if after.first().is_some_and(|b| b" \t\r\n-".contains(b)) {
            return Some((rest.get(..at)?, after));
        }
        from = at + 1;
    }
}

/// The first line without its line feed, and the rest.
fn line(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let at = text.iter().position(|b| *b == b'\n')?;
    Some((text.get(..at)?, text.get(at + 1..)?))
}

/// The name of a value in a form.
fn form_name(disposition: &str) -> Option<String> {
    let (kind, parameters) = split(disposition);
    let is_value = kind.eq_ignore_ascii_case("form-data") && parameter(&parameters, "filename").is_none();
    parameter(&parameters, "name").filter(|name| is_value && !name.is_empty())
}

fn parameter(all: &[(String, String)], name: &str) -> Option<String> {
    all.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value.clone())
}

/// A header's value and its parameters, quoted or not.
fn split(text: &str) -> (&str, Vec<(String, String)>) {
    let (value, mut rest) = text.split_once(';').unwrap_or((text, ""));
    let mut parameters = Vec::new();
    while let Some((name, after)) = rest.split_once('=') {
        let (mut value, mut chars) = (String::new(), after.char_indices());
        let end = if after.starts_with('"') {
            chars.next();
            let mut end = after.len();
            while let Some((at, c)) = chars.next() {
                match c {
                    '"' => {
                        end = at + 1;
                        break;
                    }
                    '\\' => value.extend(chars.next().map(|(_, c)| c)),
                    c => value.push(c),
                }
            }
            end
        } else {
            let end = after.find(';').unwrap_or(after.len());
            value.push_str(after.get(..end).unwrap_or_default().trim());
            end
        };
        parameters.push((name.trim().to_owned(), value));
        rest = after.get(end..).unwrap_or_default().trim_start();
        rest = rest.strip_prefix(';').unwrap_or(rest);
    }
    (value.trim(), parameters)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_found_by_name_and_files_left_out() {
        let body = "before\r\n--x y\r\nContent-Disposition: form-data; name=\"cmd\"\r\n\r\nls -l\r\n--x yz\r\n/\r\n\
                    --x y\r\ncontent-disposition: form-data; name=n; filename=\"f\"\r\nA: b\r\n\r\nfile\r\n\
                    --x y \r\nContent-Disposition: form-data; name=\"a;\\\"b\"\r\n\r\n\r\n--x y--\r\nafter";
        let content_type = "Multipart/Form-Data; charset=utf-8; boundary=\"x y\"";
        let boundary = boundary(content_type).unwrap();
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(
            values(body.as_bytes(), &boundary),
            Some(vec![pair("cmd", "ls -l\r\n--x yz\r\n/"), pair("a;\"b", "")])
        );
        let feeds = "--b\nContent-Disposition: form-data; name=c\n\nv\n--b--";
        assert_eq!(values(feeds.as_bytes(), "b"), Some(vec![pair("c", "v")]));
        assert_eq!(values(b"--b--\r\n", "b"), Some(Vec::new()));
    }

    #[test]
    fn of_a_broken_body_nothing_counts() {
        let good = "--b\r\nContent-Disposition: form-data; name=c\r\n\r\nv\r\n--b--\r\n";
        assert!(values(good.as_bytes(), "b").is_some());
        for broken in [
            "",
            "--c--",
            good.strip_suffix("\r\n--b--\r\n").unwrap(),
            &good.replace("--b--", "--b x"),
            &good.replace("Content-Disposition:", "no header"),
        ] {
            assert_eq!(values(broken.as_bytes(), "b"), None, "{broken:?}");
        }
        assert_eq!(boundary("multipart/mixed; boundary=b"), None);
        assert_eq!(boundary("multipart/form-data; boundary="), None);
        assert_eq!(boundary("multipart/form-data"), None);
    }
}
