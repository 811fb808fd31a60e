//! `$(VAR)` in commands and arguments.
//!
//! Syntax: `$(NAME)` is replaced when NAME is set and left as written when not; `$$` is a dollar sign that starts
//! nothing. Followed: `third_party/forked/golang/expansion`.

/// What gRPC says of a text that is none: values of variables may be any bytes, commands and paths may not.
pub const NOT_TEXT: &str = "grpc: error while marshaling: string field contains invalid UTF-8";

/// Replaces references to `variables` in `text`; of several entries of one name the last counts.
pub fn expand<V: AsRef<[u8]>>(text: &str, variables: &[(String, V)]) -> Vec<u8> {
    if !text.contains('$') {
        return text.as_bytes().to_vec();
    }
    let value = |name: &str| variables.iter().rev().find(|(n, _)| n == name).map(|(_, v)| v.as_ref());
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        out.extend_from_slice(&rest.as_bytes()[..at]);
        let after = &rest[at + 1..];
        if let Some(tail) = after.strip_prefix('$') {
            out.push(b'$');
            rest = tail;
        } else if let Some((name, tail)) = after.strip_prefix('(').and_then(|a| a.split_once(')')) {
            match value(name) {
                Some(v) => out.extend_from_slice(v),
                None => out.extend_from_slice(format!("$({name})").as_bytes()),
            }
            rest = tail;
        } else {
            out.push(b'$');
            rest = after;
        }
    }
    out.extend_from_slice(rest.as_bytes());
    out
}

/// The same where only a text will do; `None` when a variable makes it none.
pub fn expand_text<V: AsRef<[u8]>>(text: &str, variables: &[(String, V)]) -> Option<String> {
    String::from_utf8(expand(text, variables)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_are_replaced_and_escapes_kept() {
        let vars = [("A".to_owned(), "one".to_owned()), ("B".to_owned(), "two".to_owned())];
        let expand = |text: &str| expand_text(text, &vars).unwrap();
        assert_eq!(expand("$(A)/$(B)"), "one/two");
        assert_eq!(expand("$$(A) $$$(A)"), "$(A) $one");
        assert_eq!(expand("$(C) x$(A)y $A $(A"), "$(C) xoney $A $(A");
        assert_eq!(expand("end$"), "end$");
    }

    #[test]
    fn values_are_bytes_and_spoil_only_texts() {
        let vars = [("A".to_owned(), vec![0xff, 0])];
        assert_eq!(expand("x$(A)y", &vars), [b'x', 0xff, 0, b'y']);
        assert_eq!((expand_text("x$(A)y", &vars), expand_text("$$(A)", &vars)), (None, Some("$(A)".into())));
    }
}
