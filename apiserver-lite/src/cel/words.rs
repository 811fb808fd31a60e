//! Words of the language that cannot be names, as its grammar lists them.

/// Kept for the language; `in` is an operator.
const RESERVED: [&str; 18] = [
    "as",
    "break",
    "const",
    "continue",
    "else",
    "for",
    "function",
    "if",
    "import",
    "in",
    "let",
    "loop",
    "namespace",
    "package",
    "return",
    "var",
    "void",
    "while",
];

/// Whether a word is kept for the language. Literals are not: they have values.
pub(super) fn is_reserved(word: &str) -> bool {
    RESERVED.contains(&word)
}

/// Whether a word means something already: reserved, or a literal.
pub(super) fn is_taken(word: &str) -> bool {
    is_reserved(word) || matches!(word, "true" | "false" | "null")
}

/// Whether a name can stand in an expression as it is.
pub fn is_identifier(name: &str) -> bool {
    let first = |b: &u8| b.is_ascii_alphabetic() || *b == b'_';
    name.as_bytes().first().is_some_and(first)
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
        && !is_taken(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_the_language_are_no_names() {
        for name in ["true", "null", "in", "while", "namespace", "", "1a", "a-b", "é"] {
            assert!(!is_identifier(name), "{name}");
        }
        assert!(is_identifier("_a1") && is_identifier("While"));
        assert!(is_taken("false") && !is_reserved("false") && is_reserved("in"));
    }
}
