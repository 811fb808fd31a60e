//! Complaints about an expression, in the form of cel-go: a line for people, the source, and a mark below the place.

/// Complaints that are kept; of the others, only how many there are.
const MOST: usize = 100;
/// A longer line of source, in bytes, is not shown.
const LONGEST_LINE: usize = 16_384;

/// A complaint about a place in an expression.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Issue {
    /// Offset in bytes.
    pub at: usize,
    pub text: String,
}

/// Where complaints stand that are about the whole.
pub(super) const NOWHERE: usize = usize::MAX;

/// Adds a complaint; of one that will not be shown, only that there is one.
pub(super) fn keep(issues: &mut Vec<Issue>, issue: Issue) {
    let text = if issues.len() < MOST { issue.text } else { String::new() };
    issues.push(Issue { text, ..issue });
}

/// The first hundred complaints by their places.
pub(super) fn shown(issues: &[Issue], source: &str) -> String {
    let mut kept: Vec<&Issue> = issues.iter().take(MOST).collect();
    kept.sort_by_key(|issue| issue.at.wrapping_add(1));
    let mut lines: Vec<String> = kept.into_iter().map(|issue| issue.shown(source)).collect();
    if issues.len() > MOST {
        lines.push(format!("{} more errors were truncated", issues.len() - MOST));
    }
    lines.join("\n")
}

impl Issue {
    fn shown(&self, source: &str) -> String {
        if self.at == NOWHERE {
            return format!("ERROR: <input>:-1:0: {}", self.text);
        }
        let before = source.get(..self.at).unwrap_or(source);
        let number = before.matches('\n').count();
        let column = before.rsplit('\n').next().unwrap_or_default().chars().count();
        let line = source.split('\n').nth(number).unwrap_or_default();
        let head = format!("ERROR: <input>:{}:{}: {}", number + 1, column + 1, self.text);
        if line.len() > LONGEST_LINE {
            return head;
        }
        // What is no ASCII counts as wide, and the line below is as wide as the one above.
        let mark = |c: char, narrow: char, wide: char| if c.len_utf8() > 1 { wide } else { narrow };
        let dots: String = line.chars().take(column).map(|c| mark(c, '.', '\u{ff0e}')).collect();
        let place = line.chars().nth(column).map_or('^', |c| mark(c, '^', '\u{ff3e}'));
        format!("{head}\n | {}\n | {dots}{place}", line.replace('\t', " "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn issue(at: usize) -> Issue {
        Issue { at, text: format!("at {at}") }
    }

    #[test]
    fn complaints_come_by_place_and_too_many_are_counted() {
        // The tab and the letter of two bytes stand before the second place.
        let expected = "ERROR: <input>:1:1: at 0\n | a\n | ^\nERROR: <input>:2:3: at 5\n |  ü b\n | .\u{ff0e}^";
        assert_eq!(shown(&[issue(5), issue(0)], "a\n\tü b"), expected);
        let many: Vec<Issue> = (0..103).map(|_| issue(0)).collect();
        let text = shown(&many, "x");
        assert_eq!(text.matches("ERROR").count(), 100);
        assert!(text.ends_with("\n3 more errors were truncated"));
        assert_eq!(shown(&[issue(1)], &"x".repeat(LONGEST_LINE + 1)), "ERROR: <input>:1:2: at 1");
    }
}
