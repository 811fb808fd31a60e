//! `$(VAR)` in commands and arguments.
//!
//! Syntax: `$(NAME)` is replaced when NAME is set and left as written when not; `$$` is a dollar sign that starts
//! nothing. Followed: `third_party/forked/golang/expansion`.

/// Replaces references to `variables` in `text`; of several entries of one name the last counts.
pub fn expand(text: &str, variables: &[(String, String)]) -> String {
    if !text.contains('$') {
        return text.to_owned();
    }
    let value = |name: &str| variables.iter().rev().find(|(n, _)| n == name).map(|(_, v)| v.as_str());
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        let after = &rest[at + 1..];
        if let Some(tail) = after.strip_prefix('$') {
            out.push('$');
            rest = tail;
        } else if let Some((name, tail)) = after.strip_prefix('(').and_then(|a| a.split_once(')')) {
            match value(name) {
                Some(v) => out.push_str(v),
                None => {
                    out.push_str("$(");
                    out.push_str(name);
                    out.push(')');
                }
            }
            rest = tail;
        } else {
            out.push('$');
            rest = after;
        }
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_are_replaced_and_escapes_kept() {
        let vars = [("A".to_owned(), "one".to_owned()), ("B".to_owned(), "two".to_owned())];
        assert_eq!(expand("$(A)/$(B)", &vars), "one/two");
        assert_eq!(expand("$$(A) $$$(A)", &vars), "$(A) $one");
        assert_eq!(expand("$(C) x$(A)y $A $(A", &vars), "$(C) xoney $A $(A");
        assert_eq!(expand("end$", &vars), "end$");
    }
}
