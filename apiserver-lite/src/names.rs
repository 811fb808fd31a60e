//! The names that Kubernetes accepts, with its complaints: DNS labels and subdomains, qualified names, label values.
//! Each function returns every complaint about a text, none for a good one.

fn is_label(text: &str) -> bool {
    let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    let edge = |b: Option<&u8>| b.is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    text.bytes().all(inner) && edge(text.as_bytes().first()) && edge(text.as_bytes().last())
}

/// RFC 1123 label: 63 characters of lower-case letters, digits and `-`.
pub fn dns_label(text: &str) -> Vec<String> {
    let mut out = Vec::new();
    if text.len() > 63 {
        out.push("must be no more than 63 characters".into());
    }
    if !is_label(text) && text.split('.').all(is_label) && text.len() <= 253 {
        out.push("must not contain dots".into());
    } else if !is_label(text) {
        out.push(
            "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and \
             end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is \
             '[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
                .into(),
        );
    }
    out
}

/// RFC 1035 label: as above, starting with a letter.
pub fn dns_1035_label(text: &str) -> Vec<String> {
    let mut out = Vec::new();
    if text.len() > 63 {
        out.push("must be no more than 63 characters".into());
    }
    if !is_label(text) || !text.starts_with(|c: char| c.is_ascii_lowercase()) {
        out.push(
            "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic \
             character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for \
             validation is '[a-z]([-a-z0-9]*[a-z0-9])?')"
                .into(),
        );
    }
    out
}

/// RFC 1123 subdomain: labels joined by dots, 253 characters.
pub fn dns_subdomain(text: &str) -> Vec<String> {
    let mut out = Vec::new();
    if text.len() > 253 {
        out.push("must be no more than 253 characters".into());
    }
    if !text.split('.').all(is_label) {
        out.push(
            "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must \
             start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is \
             '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
                .into(),
        );
    }
    out
}

/// As [`dns_subdomain`], for a stem that may end with `-`.
pub fn dns_subdomain_stem(text: &str) -> Vec<String> {
    match text.strip_suffix('-') {
        Some(start) if !start.is_empty() => {
            dns_subdomain(&format!("{}a", &start[..start.len() - start.chars().next_back().map_or(0, char::len_utf8)]))
        }
        _ => dns_subdomain(text),
    }
}

fn is_name_part(text: &str) -> bool {
    let edge = |b: Option<&u8>| b.is_some_and(u8::is_ascii_alphanumeric);
    text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
        && edge(text.as_bytes().first())
        && edge(text.as_bytes().last())
}

/// A label or annotation key: an optional DNS subdomain and `/`, then a name of 63 characters.
pub fn qualified_name(text: &str) -> Vec<String> {
    const FORM: &str = "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an \
                        alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation \
                        is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";
    let mut out = Vec::new();
    let mut parts = text.split('/');
    let name = match (parts.next(), parts.next(), parts.next()) {
        (Some(name), None, _) => name,
        (Some(prefix), Some(name), None) => {
            if prefix.is_empty() {
                out.push("prefix part must be non-empty".into());
            } else {
                out.extend(dns_subdomain(prefix).into_iter().map(|c| format!("prefix part {c}")));
            }
            name
        }
        _ => {
            return vec![format!(
                "a valid label key {FORM} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
            )];
        }
    };
    if name.is_empty() {
        out.push("name part must be non-empty".into());
    } else if name.len() > 63 {
        out.push("name part must be no more than 63 bytes".into());
    }
    if !is_name_part(name) {
        out.push(format!("name part {FORM}"));
    }
    out
}

/// A label's value: empty, or 63 characters.
pub fn label_value(text: &str) -> Vec<String> {
    let mut out = Vec::new();
    if text.len() > 63 {
        out.push("must be no more than 63 bytes".into());
    }
    if !text.is_empty() && !is_name_part(text) {
        out.push(
            "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must \
             start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for \
             validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
                .into(),
        );
    }
    out
}

/// A key of a ConfigMap or Secret, which becomes a file's name.
pub fn config_key(text: &str) -> Vec<String> {
    let mut out = Vec::new();
    if text.len() > 253 {
        out.push("must be no more than 253 characters".into());
    }
    if text.is_empty() || !text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.')) {
        out.push(
            "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or \
             'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')"
                .into(),
        );
    }
    if text == "." {
        out.push("must not be '.'".into());
    } else if text == ".." {
        out.push("must not be '..'".into());
    } else if text.starts_with("..") {
        out.push("must not start with '..'".into());
    }
    out
}

/// The name of a port: an IANA service name.
pub fn port_name(text: &str) -> Vec<String> {
    let mut out = Vec::new();
    if text.len() > 15 {
        out.push("must be no more than 15 characters".into());
    }
    if text.is_empty() || !text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-') {
        out.push("must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)".into());
    }
    if !text.bytes().any(|b| b.is_ascii_lowercase()) {
        out.push("must contain at least one letter (a-z)".into());
    }
    if text.contains("--") {
        out.push("must not contain consecutive hyphens".into());
    }
    if text.starts_with('-') || text.ends_with('-') {
        out.push("must not begin or end with a hyphen".into());
    }
    out
}

/// A DNS subdomain whose first label is `*`.
pub fn wildcard_subdomain(text: &str) -> Vec<String> {
    let mut out = Vec::new();
    if text.len() > 253 {
        out.push("must be no more than 253 characters".into());
    }
    if !text.strip_prefix("*.").is_some_and(|rest| rest.split('.').all(is_label)) {
        out.push(
            "a wildcard DNS-1123 subdomain must start with '*.', followed by a valid DNS subdomain, which must consist \
             of lower case alphanumeric characters, '-' or '.' and end with an alphanumeric character (e.g. \
             '*.example.com', regex used for validation is \
             '\\*\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
                .into(),
        );
    }
    out
}

/// A DNS subdomain in which underscores count as letters; search domains may have them.
pub fn subdomain_with_underscores(text: &str) -> Vec<String> {
    let mut out = Vec::new();
    if text.len() > 253 {
        out.push("must be no more than 253 characters".into());
    }
    let edge = |b: Option<&u8>| b.is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || *b == b'_');
    let label = |part: &str| {
        part.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'_')
            && edge(part.as_bytes().first())
            && edge(part.as_bytes().last())
    };
    if !text.split('.').all(label) {
        out.push(
            "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must \
             start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is \
             '[a-z0-9]([-_a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-_a-z0-9]*[a-z0-9])?)*')"
                .into(),
        );
    }
    out
}

/// A name as programs have them, such as that of a device's attribute.
pub fn c_identifier(text: &str) -> Vec<String> {
    let start = |b: u8| b.is_ascii_alphabetic() || b == b'_';
    let bytes = text.as_bytes();
    if bytes.first().is_some_and(|b| start(*b)) && bytes.iter().all(|b| start(*b) || b.is_ascii_digit()) {
        return Vec::new();
    }
    vec![
        "a valid C identifier must start with alphabetic character or '_', followed by a string of alphanumeric \
         characters or '_' (e.g. 'my_name',  or 'MY_NAME',  or 'MyName', regex used for validation is \
         '[A-Za-z_][A-Za-z0-9_]*')"
            .into(),
    ]
}

/// Why a condition is as it is, in one word.
pub fn condition_reason(text: &str) -> Vec<String> {
    let inner = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b',' | b':');
    let (bytes, end) = (text.as_bytes(), |b: &u8| b.is_ascii_alphanumeric() || *b == b'_');
    let fits = bytes.first().is_some_and(u8::is_ascii_alphabetic) && bytes.last().is_some_and(end);
    if fits && bytes.iter().all(inner) {
        return Vec::new();
    }
    vec![
        "a condition reason must start with alphabetic character, optionally followed by a string of alphanumeric \
         characters or '_,:', and must end with an alphanumeric character or '_' (e.g. 'my_name',  or 'MY_NAME',  or \
         'MyName',  or 'ReasonA,ReasonB',  or 'ReasonA:ReasonB', regex used for validation is \
         '[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?')"
            .into(),
    ]
}

/// Whether a text is a version as semver.org has it in 2.0.0.
pub fn is_semantic_version(text: &str) -> bool {
    let (rest, build) = text.split_once('+').map_or((text, None), |(rest, build)| (rest, Some(build)));
    let (core, before) = rest.split_once('-').map_or((rest, None), |(core, before)| (core, Some(before)));
    let number = |part: &str| {
        !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit()) && (part == "0" || !part.starts_with('0'))
    };
    let word = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
    let release = |part: &str| word(part) && (number(part) || !part.bytes().all(|b| b.is_ascii_digit()));
    core.split('.').count() == 3
        && core.split('.').all(number)
        && before.is_none_or(|parts| parts.split('.').all(release))
        && build.is_none_or(|parts| parts.split('.').all(word))
}

/// The name of an environment variable: printable ASCII without `=`.
pub fn variable(text: &str) -> Vec<String> {
    if text.is_empty() {
        return vec!["environment variable name must not be empty".into()];
    }
    if text.bytes().all(|b| (b' '..=b'~').contains(&b) && b != b'=') {
        return Vec::new();
    }
    vec!["a valid environment variable name must consist only of printable ASCII characters other than '='".into()]
}

/// The name of an HTTP header.
pub fn http_header(text: &str) -> Vec<String> {
    if !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-') {
        return Vec::new();
    }
    vec![
        "a valid HTTP header must consist of alphanumeric characters or '-' (e.g. 'X-Header-Name', regex used for \
         validation is '[-A-Za-z0-9]+')"
            .into(),
    ]
}

/// A domain of at least three labels, as webhooks are named.
pub fn fully_qualified(text: &str) -> Vec<String> {
    let complaints = dns_subdomain(text);
    if complaints.is_empty() && text.split('.').count() < 3 {
        return vec!["should be a domain with at least three segments separated by dots".into()];
    }
    complaints
}

/// `domain/path`.
pub fn domain_prefixed_path(text: &str) -> Vec<String> {
    let Some((domain, path)) = text.split_once('/') else {
        return vec!["must be a domain-prefixed path (such as \"acme.io/foo\")".into()];
    };
    if domain.is_empty() || path.is_empty() {
        return vec!["must be a domain-prefixed path (such as \"acme.io/foo\")".into()];
    }
    let mut out: Vec<String> = dns_subdomain(domain);
    let good = |b: u8| b.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=:/%@".contains(&b);
    if !path.bytes().all(good) {
        out.push("Invalid path (regex used for validation is '[A-Za-z0-9/\\-._~%!$&'()*+,;=:]+')".into());
    }
    out
}

/// A port's number.
pub fn port(number: i64) -> Vec<String> {
    if (1..=65535).contains(&number) { Vec::new() } else { vec!["must be between 1 and 65535, inclusive".into()] }
}

/// A name that may be one element of a path.
pub fn path_segment(text: &str) -> Vec<String> {
    if text == "." || text == ".." {
        return vec![format!("may not be '{text}'")];
    }
    ['/', '%'].into_iter().filter(|c| text.contains(*c)).map(|c| format!("may not contain '{c}'")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn good_names_have_no_complaints() {
        assert!(dns_subdomain("a.b-c.9").is_empty());
        assert!(dns_label("9a").is_empty() && !dns_1035_label("9a").is_empty());
        assert!(qualified_name("example.com/My_Name.x").is_empty());
        assert!(label_value("").is_empty());
    }

    #[test]
    fn bad_names_have_some() {
        for name in ["", "A", "a..b", "-a", "a-", "a_b"] {
            assert!(!dns_subdomain(name).is_empty(), "{name}");
        }
        for key in ["", "/a", "a/b/c", "a b", "-a", &"x".repeat(64)] {
            assert!(!qualified_name(key).is_empty(), "{key}");
        }
    }

    #[test]
    fn versions_have_three_numbers_and_perhaps_words_after_them() {
        for good in ["1.2.3", "0.0.0", "1.0.0-alpha.1+build.007", "1.0.0--", "1.0.0+0a"] {
            assert!(is_semantic_version(good), "{good}");
        }
        for bad in ["", "1.2", "01.0.0", "1.0.0-01", "1.0.0-", "1.0.0+", "v1.0.0", "1.0.0+a+b"] {
            assert!(!is_semantic_version(bad), "{bad}");
        }
        assert!(c_identifier("_a1").is_empty() && !c_identifier("1a").is_empty() && !c_identifier("").is_empty());
    }
}
