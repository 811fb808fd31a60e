//! Static tokens: a file of `token,user,uid,"group1,group2"` lines, read once at start.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use ring::digest::{SHA256, digest};

use crate::request::User;

/// Why the file is of no use. The operator has to correct it.
#[derive(Debug, thiserror::Error)]
pub enum TokenFileError {
    #[error("{}: {source}", path.display())]
    Io { path: PathBuf, source: std::io::Error },
    #[error("token file '{}' must have at least 3 columns (token, user name, user uid), found {found}", path.display())]
    Columns { path: PathBuf, found: usize },
    #[error("token file '{}': record on line {line}: {reason}", path.display())]
    Syntax { path: PathBuf, line: usize, reason: &'static str },
}

/// Users by the digest of their token: the tokens themselves are not kept, and looking one up takes no longer for a
/// good guess than for a bad one.
#[derive(Debug, Default)]
pub struct TokenFile(HashMap<[u8; 32], User>);

impl TokenFile {
    /// # Errors
    /// When the file cannot be read or a line is malformed.
    pub fn load(path: &Path) -> Result<Self, TokenFileError> {
        let text = std::fs::read_to_string(path).map_err(|source| TokenFileError::Io { path: path.into(), source })?;
        Self::parse(path, &text)
    }

    fn parse(path: &Path, text: &str) -> Result<Self, TokenFileError> {
        let mut out = HashMap::new();
        for (line, record) in records(text) {
            let record = record.map_err(|reason| TokenFileError::Syntax { path: path.into(), line, reason })?;
            let [token, name, uid, rest @ ..] = record.as_slice() else {
                return Err(TokenFileError::Columns { path: path.into(), found: record.len() });
            };
            if token.is_empty() {
                tracing::warn!(path = %path.display(), line, "empty token in the token file; the line is skipped");
                continue;
            }
            if name.is_empty() {
                tracing::warn!(path = %path.display(), line, "no user name in the token file; the line is skipped");
                continue;
            }
            let groups = rest.first().filter(|g| !g.is_empty()).map(|g| g.split(',').map(Into::into).collect());
            let user =
                User { name: name.clone(), uid: uid.clone(), groups: groups.unwrap_or_default(), extra: Vec::new() };
            if out.insert(hash(token), user).is_some() {
                tracing::warn!(path = %path.display(), line, "a token is in the token file twice; the last one counts");
            }
        }
        Ok(TokenFile(out))
    }

    pub fn user(&self, token: &str) -> Option<&User> {
        self.0.get(&hash(token))
    }
}

fn hash(token: &str) -> [u8; 32] {
    digest(&SHA256, token.as_bytes()).as_ref().try_into().unwrap_or_default()
}

/// Comma separated values as Go's `encoding/csv` reads them (no leading space trimmed, empty lines skipped).
fn records(text: &str) -> Vec<(usize, Result<Vec<String>, &'static str>)> {
    let mut out = Vec::new();
    let mut chars = text.chars().peekable();
    let mut line = 1;
    while chars.peek().is_some() {
        let first = line;
        let mut record = Vec::new();
        let mut field = String::new();
        let mut problem = None;
        let mut quoted = false;
        let mut started = false;
        loop {
            let next = chars.next();
            match next {
                Some('"') if !started => (quoted, started) = (true, true),
                Some('"') if quoted && chars.peek() == Some(&'"') => {
                    chars.next();
                    field.push('"');
                }
                Some('"') if quoted => {
                    quoted = false;
                    if !matches!(chars.peek(), None | Some(',' | '\n' | '\r')) {
                        problem = Some("extraneous or missing \" in quoted-field");
                    }
                }
                Some('"') => problem = Some("bare \" in non-quoted field"),
                Some(c @ ('\n' | ',')) if quoted => {
                    line += usize::from(c == '\n');
                    field.push(c);
                }
                None if quoted => {
                    problem = Some("extraneous or missing \" in quoted-field");
                    break;
                }
                Some(',') => {
                    record.push(std::mem::take(&mut field));
                    started = false;
                }
                Some('\r') if chars.peek() == Some(&'\n') && !quoted => {}
                Some('\n') => {
                    line += 1;
                    break;
                }
                None => break,
                Some(c) => {
                    started = true;
                    field.push(c);
                }
            }
        }
        if record.is_empty() && field.is_empty() && !started {
            continue;
        }
        record.push(field);
        out.push((first, problem.map_or(Ok(record), Err)));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<TokenFile, TokenFileError> {
        TokenFile::parse(Path::new("tokens.csv"), text)
    }

    #[test]
    fn a_line_names_user_uid_and_groups() {
        let file = parse("t1,admin,1,\"system:masters,dev\"\n\nt2,bob,2\r\nt3,eve,3,ops").expect("good");
        assert_eq!(file.user("t1").expect("known").groups, ["system:masters", "dev"]);
        let bob = file.user("t2").expect("known");
        assert_eq!((bob.name.as_str(), bob.uid.as_str(), bob.groups.len()), ("bob", "2", 0));
        assert_eq!(file.user("t3").expect("known").groups, ["ops"]);
        assert!(file.user("t4").is_none() && file.user("").is_none());
    }

    #[test]
    fn short_and_malformed_lines_are_errors() {
        assert!(parse("a,b\n").expect_err("short").to_string().contains("found 2"));
        assert!(parse("a,b,c,\"x\n").is_err());
        assert!(parse("a\"b,c,d\n").is_err());
        assert!(parse(",b,c\n").expect("skipped").user("").is_none());
    }
}
