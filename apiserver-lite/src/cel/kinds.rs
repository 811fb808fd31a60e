//! The kinds of tokens, in the order in which complaints list them, and sets of them.

/// Kinds as the generated parser of cel-go names them. The last ones stand for many texts.
const NAMES: [&str; 36] = [
    "<EOF>",
    "'=='",
    "'!='",
    "'in'",
    "'<'",
    "'<='",
    "'>='",
    "'>'",
    "'&&'",
    "'||'",
    "'['",
    "']'",
    "'{'",
    "'}'",
    "'('",
    "')'",
    "'.'",
    "','",
    "'-'",
    "'!'",
    "'?'",
    "':'",
    "'+'",
    "'*'",
    "'/'",
    "'%'",
    "'true'",
    "'false'",
    "'null'",
    "NUM_FLOAT",
    "NUM_INT",
    "NUM_UINT",
    "STRING",
    "BYTES",
    "IDENTIFIER",
    "ESC_IDENTIFIER",
];

/// Some kinds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Kinds(u64);

impl Kinds {
    pub const NONE: Kinds = Kinds(0);
    pub const END: Kinds = Kinds(1);
    pub const DOUBLE: Kinds = Kinds(1 << 29);
    pub const INT: Kinds = Kinds(1 << 30);
    pub const UINT: Kinds = Kinds(1 << 31);
    pub const TEXT: Kinds = Kinds(1 << 32);
    pub const BYTES: Kinds = Kinds(1 << 33);
    pub const NAME: Kinds = Kinds(1 << 34);
    pub const ESCAPED: Kinds = Kinds(1 << 35);
    /// What an operand can begin with, and a unary expression besides.
    pub const OPERAND: Kinds =
        Kinds::of(&["[", "{", "(", ".", "-", "true", "false", "null"]).or(Kinds(0b11_1111 << 29));
    pub const EXPRESSION: Kinds = Kinds::OPERAND.or(Kinds::of(&["!"]));

    /// The kind of each sign or word.
    pub const fn of(signs: &[&str]) -> Self {
        let (mut set, mut at) = (0, 0);
        while at < signs.len() {
            set |= Kinds::sign(signs[at]).0;
            at += 1;
        }
        Kinds(set)
    }

    /// The kind of one; none for what is no sign.
    pub const fn sign(sign: &str) -> Self {
        let sign = sign.as_bytes();
        let mut kind = 1;
        while kind < 29 {
            let name = NAMES[kind].as_bytes();
            if name.len() == sign.len() + 2 {
                let mut at = 0;
                while at < sign.len() && name[at + 1] == sign[at] {
                    at += 1;
                }
                if at == sign.len() {
                    return Kinds(1 << kind);
                }
            }
            kind += 1;
        }
        Kinds::NONE
    }

    #[must_use]
    pub const fn or(self, other: Self) -> Self {
        Kinds(self.0 | other.0)
    }

    /// Whether any of `other` is among them.
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// As complaints list them: alone, or in braces.
    pub fn shown(self) -> String {
        let names: Vec<&str> =
            NAMES.iter().enumerate().filter(|(kind, _)| self.0 >> kind & 1 == 1).map(|(_, name)| *name).collect();
        if names.len() == 1 { names[0].to_owned() } else { format!("{{{}}}", names.join(", ")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_listed_in_their_order() {
        assert_eq!(Kinds::of(&[":"]).shown(), "':'");
        assert_eq!(Kinds::of(&[",", "]"]).shown(), "{']', ','}");
        let all = "{'[', '{', '(', '.', '-', '!', 'true', 'false', 'null', NUM_FLOAT, NUM_INT, NUM_UINT, STRING, BYTES, \
                   IDENTIFIER}";
        assert_eq!(Kinds::EXPRESSION.shown(), all);
        assert_eq!(Kinds::sign("==="), Kinds::NONE);
        assert!(Kinds::of(&["<", "<="]).has(Kinds::sign("<=")));
    }
}
