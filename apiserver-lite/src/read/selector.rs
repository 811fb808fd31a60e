//! Label and field selectors: parsing with upstream's complaints, matching against an object's parsed keys.

use super::shard::Shard;
use crate::resource::{Resource, fields};
use crate::status::{ApiError, Result, quote};
use crate::store::StoredObject;

/// Both selectors of a request; empty ones match everything.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Selector {
    labels: Vec<Requirement>,
    fields: Vec<Term>,
    /// Those on fields that a definition lets clients select by.
    own: Vec<Term>,
    shard: Option<Shard>,
}

#[derive(Debug, Clone, PartialEq)]
struct Requirement {
    key: String,
    operator: Operator,
    values: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Operator {
    In,
    NotIn,
    Exists,
    Missing,
    Greater,
    Less,
}

#[derive(Debug, Clone, PartialEq)]
struct Term {
    path: String,
    value: String,
    equal: bool,
}

impl Selector {
    /// Reads the selectors of a request.
    ///
    /// # Errors
    /// 400 with the parser's complaint, or for a field that the resource does not select by.
    pub fn parse(resource: &Resource, labels: &str, fields: &str) -> Result<Self> {
        let labels = parse_labels(labels).map_err(ApiError::bad_request)?;
        let (fields, own) = parse_fields(resource, fields)?;
        Ok(Selector { labels, fields, own, shard: None })
    }

    /// The same for a part of the collection.
    #[must_use]
    pub fn within(self, shard: Option<Shard>) -> Self {
        Selector { shard, ..self }
    }

    /// The part of the collection that is meant, as text.
    pub fn shard_text(&self) -> Option<String> {
        self.shard.as_ref().map(Shard::text)
    }

    pub fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty() && self.own.is_empty() && self.shard.is_none()
    }

    /// Whether an object is chosen, by what is kept with it.
    pub fn matches(&self, object: &StoredObject) -> bool {
        self.matches_outside(object) && self.own.iter().all(|t| t.matches(object.field(&t.path)))
    }

    /// Whether fields are named that may have to be looked for in the object, see [`super::chosen`].
    pub fn looks_inside(&self) -> bool {
        !self.own.is_empty()
    }

    /// Whether an object is chosen as far as all but those fields go.
    pub fn matches_outside(&self, object: &StoredObject) -> bool {
        self.shard.as_ref().is_none_or(|s| s.matches(object))
            && self.labels.iter().all(|r| r.matches(object.label(&r.key)))
            && self.fields.iter().all(|t| t.matches(object.field(&t.path)))
    }

    /// Whether an object is chosen as far as those fields go.
    pub fn matches_inside(&self, fields: &[(&str, String)]) -> bool {
        let value = |path: &str| fields.iter().find(|(name, _)| *name == path).map_or("", |(_, value)| value);
        self.own.iter().all(|t| t.matches(value(&t.path)))
    }

    /// The one name that can match, when the fields say so.
    pub fn name(&self) -> Option<&str> {
        self.fields.iter().find(|t| t.equal && t.path == "metadata.name").map(|t| t.value.as_str())
    }
}

impl Term {
    fn matches(&self, value: &str) -> bool {
        (value == self.value) == self.equal
    }
}

impl Requirement {
    fn matches(&self, value: Option<&str>) -> bool {
        match (self.operator, value) {
            (Operator::In, Some(value)) => self.values.iter().any(|v| v == value),
            (Operator::NotIn, Some(value)) => !self.values.iter().any(|v| v == value),
            (Operator::NotIn | Operator::Missing, None) | (Operator::Exists, Some(_)) => true,
            (Operator::Greater | Operator::Less, Some(value)) => {
                let wanted = self.values.first().and_then(|v| v.parse::<i64>().ok());
                match (value.parse::<i64>().ok(), wanted) {
                    (Some(have), Some(wanted)) if self.operator == Operator::Greater => have > wanted,
                    (Some(have), Some(wanted)) => have < wanted,
                    _ => false,
                }
            }
            _ => false,
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
enum Token {
    Word(String),
    Symbol(&'static str),
    End,
}

impl Token {
    fn text(&self) -> &str {
        match self {
            Token::Word(word) => word,
            Token::Symbol(symbol) => symbol,
            Token::End => "",
        }
    }
}

fn tokens(text: &str) -> Vec<Token> {
    let mut out = Vec::new();
    let mut rest = text;
    loop {
        rest = rest.trim_start();
        if rest.is_empty() {
            out.push(Token::End);
            return out;
        }
        let symbol = ["==", "!=", "=", "!", "(", ")", ",", "<", ">"].into_iter().find(|s| rest.starts_with(s));
        if let Some(symbol) = symbol {
            out.push(Token::Symbol(symbol));
            rest = &rest[symbol.len()..];
            continue;
        }
        let end = rest.find(|c: char| c.is_whitespace() || "=!(),<>".contains(c)).unwrap_or(rest.len());
        out.push(Token::Word(rest[..end].to_owned()));
        rest = &rest[end..];
    }
}

fn parse_labels(text: &str) -> std::result::Result<Vec<Requirement>, String> {
    let tokens = tokens(text);
    let mut at = 0;
    let mut out = Vec::new();
    loop {
        match &tokens[at] {
            Token::End => {
                return if out.is_empty() { Ok(out) } else { Err("found '', expected: identifier after ','".into()) };
            }
            Token::Word(_) | Token::Symbol("!") => {
                let requirement =
                    requirement(&tokens, &mut at).map_err(|e| format!("unable to parse requirement: {e}"))?;
                out.push(requirement);
                match &tokens[at] {
                    Token::End => {
                        out.sort_by(|a, b| a.key.cmp(&b.key));
                        return Ok(out);
                    }
                    Token::Symbol(",") => {
                        at += 1;
                        if !matches!(tokens[at], Token::Word(_) | Token::Symbol("!")) {
                            return Err(format!("found '{}', expected: identifier after ','", tokens[at].text()));
                        }
                    }
                    other => return Err(format!("found '{}', expected: ',' or 'end of string'", other.text())),
                }
            }
            other => return Err(format!("found '{}', expected: !, identifier, or 'end of string'", other.text())),
        }
    }
}

fn requirement(tokens: &[Token], at: &mut usize) -> std::result::Result<Requirement, String> {
    let mut operator = None;
    if tokens[*at] == Token::Symbol("!") {
        operator = Some(Operator::Missing);
        *at += 1;
    }
    let Token::Word(key) = &tokens[*at] else {
        return Err(format!("found '{}', expected: identifier", tokens[*at].text()));
    };
    check_key(key)?;
    let key = key.clone();
    *at += 1;
    if let Some(operator) = operator {
        return Ok(Requirement { key, operator, values: Vec::new() });
    }
    let operator = match &tokens[*at] {
        Token::End | Token::Symbol(",") => {
            return Ok(Requirement { key, operator: Operator::Exists, values: Vec::new() });
        }
        Token::Symbol("=" | "==") => Operator::In,
        Token::Symbol("!=") => Operator::NotIn,
        Token::Symbol(">") => Operator::Greater,
        Token::Symbol("<") => Operator::Less,
        Token::Word(word) if word == "in" || word == "notin" => {
            let operator = if word == "in" { Operator::In } else { Operator::NotIn };
            *at += 1;
            let mut values = value_list(tokens, at)?;
            values.sort();
            values.dedup();
            check_values(&key, operator, &values)?;
            return Ok(Requirement { key, operator, values });
        }
        other => return Err(format!("found '{}', expected: in, notin, =, ==, !=, gt, lt", other.text())),
    };
    *at += 1;
    let value = match &tokens[*at] {
        Token::Word(word) => {
            *at += 1;
            word.clone()
        }
        Token::End | Token::Symbol(",") => String::new(),
        other => return Err(format!("found '{}', expected: identifier", other.text())),
    };
    let values = vec![value];
    check_values(&key, operator, &values)?;
    Ok(Requirement { key, operator, values })
}

fn value_list(tokens: &[Token], at: &mut usize) -> std::result::Result<Vec<String>, String> {
    if tokens[*at] != Token::Symbol("(") {
        return Err(format!("found '{}' expected: '('", tokens[*at].text()));
    }
    *at += 1;
    if !matches!(tokens[*at], Token::Word(_) | Token::Symbol("," | ")")) {
        return Err(format!("found '{}', expected: ',', ')' or identifier", tokens[*at].text()));
    }
    let mut values = vec![String::new()];
    loop {
        match &tokens[*at] {
            Token::Word(word) => {
                if let Some(last) = values.last_mut() {
                    last.clone_from(word);
                }
                *at += 1;
                if !matches!(tokens[*at], Token::Symbol("," | ")")) {
                    return Err(format!("found '{}', expected: ',' or ')'", tokens[*at].text()));
                }
            }
            Token::Symbol(",") => {
                values.push(String::new());
                *at += 1;
                // Upstream reads commas in pairs, and after a pair it wants more.
                if tokens[*at] == Token::Symbol(",") {
                    values.push(String::new());
                    *at += 1;
                    if !matches!(tokens[*at], Token::Word(_) | Token::Symbol(",")) {
                        return Err(unfinished(&tokens[*at]));
                    }
                }
            }
            Token::Symbol(")") => {
                *at += 1;
                return Ok(values);
            }
            other => return Err(unfinished(other)),
        }
    }
}

fn unfinished(found: &Token) -> String {
    format!("found '{}', expected: ',', or identifier", found.text())
}

fn check_key(key: &str) -> std::result::Result<(), String> {
    match crate::names::qualified_name(key) {
        complaints if complaints.is_empty() => Ok(()),
        complaints => Err(format!("<nil>: Invalid value: {}: {}", quote(key), complaints.join("; "))),
    }
}

/// What is wrong with the values of one requirement, all of it; they come sorted and each once.
fn check_values(key: &str, operator: Operator, values: &[String]) -> std::result::Result<(), String> {
    let mut wrong = Vec::new();
    if matches!(operator, Operator::Greater | Operator::Less) {
        for (index, value) in values.iter().enumerate().filter(|(_, value)| value.parse::<i64>().is_err()) {
            let why = "for 'Gt', 'Lt' operators, the value must be an integer";
            wrong.push(format!("values[{index}]: Invalid value: {}: {why}", quote(value)));
        }
    }
    for (index, value) in values.iter().enumerate() {
        let complaints = crate::names::label_value(value);
        if !complaints.is_empty() {
            let why = complaints.join("; ");
            wrong.push(format!("values[{index}][{key}]: Invalid value: {}: {why}", quote(value)));
        }
    }
    match wrong.len() {
        0 => Ok(()),
        1 => Err(wrong.swap_remove(0)),
        _ => Err(format!("[{}]", wrong.join(", "))),
    }
}

/// Terms on fields that are kept with every object, and those on fields of a definition.
fn parse_fields(resource: &Resource, text: &str) -> Result<(Vec<Term>, Vec<Term>)> {
    let (mut terms, mut inside) = (Vec::new(), Vec::new());
    for term in parse_terms(text).map_err(ApiError::bad_request)? {
        let path = fields::stored_path(resource, &term.path);
        let own = || resource.definition.as_ref().is_some_and(|d| d.selectable().any(|path| *path == *term.path));
        match path {
            Some(path) => {
                let path = path.to_owned();
                terms.push(Term { path, ..term });
            }
            None if own() => inside.push(term),
            None => return Err(unsupported(resource, &term.path)),
        }
    }
    Ok((terms, inside))
}

/// The one name that a field selector allows, if it is a name that can stand in a path.
pub fn exact_name(text: &str) -> Option<String> {
    let terms = parse_terms(text).ok()?;
    let term = terms.into_iter().find(|t| t.equal && t.path == "metadata.name")?;
    let usable = !term.value.is_empty() && crate::names::path_segment(&term.value).is_empty();
    usable.then_some(term.value)
}

/// The field selector of a request whose path names an object: it may say that name again, and nothing without it.
///
/// # Errors
/// 400 for one that says something else.
pub fn of_name(fields: String, name: &str) -> Result<String> {
    if fields.is_empty() {
        let mut term = "metadata.name=".to_owned();
        for c in name.chars() {
            // What means something in a selector is part of the name here.
            if matches!(c, '\\' | ',' | '=') {
                term.push('\\');
            }
            term.push(c);
        }
        return Ok(term);
    }
    // What cannot be read is complained of when it is read.
    if parse_terms(&fields).is_ok() && exact_name(&fields).is_none_or(|said| said != name) {
        return Err(ApiError::bad_request("fieldSelector metadata.name doesn't match requested name"));
    }
    Ok(fields)
}

/// The requirements of a label selector as a SubjectAccessReview tells them; none for a selector that does not parse, or
/// that compares numbers.
pub fn label_requirements(text: &str) -> Vec<serde_json::Value> {
    let requirements = parse_labels(text).unwrap_or_default();
    let told = requirements.into_iter().filter_map(|mut requirement| {
        let operator = match requirement.operator {
            Operator::In => "In",
            Operator::NotIn => "NotIn",
            Operator::Exists => "Exists",
            Operator::Missing => "DoesNotExist",
            Operator::Greater | Operator::Less => return None,
        };
        let mut out = serde_json::json!({"key": requirement.key, "operator": operator});
        if !requirement.values.is_empty() {
            requirement.values.sort();
            out["values"] = requirement.values.into();
        }
        Some(out)
    });
    told.collect()
}

/// The same for a field selector.
pub fn field_requirements(text: &str) -> Vec<serde_json::Value> {
    let terms = parse_terms(text).unwrap_or_default().into_iter();
    let told = terms.map(|term| {
        let operator = if term.equal { "In" } else { "NotIn" };
        serde_json::json!({"key": term.path, "operator": operator, "values": [term.value]})
    });
    told.collect()
}

/// Terms in the order of their text, as upstream checks them.
fn parse_terms(text: &str) -> std::result::Result<Vec<Term>, String> {
    let mut terms = split_unescaped(text);
    terms.sort();
    let mut out = Vec::new();
    for term in terms.iter().filter(|t| !t.is_empty()) {
        let (path, value, equal) =
            operator(term).ok_or_else(|| format!("invalid selector: '{text}'; can't understand '{term}'"))?;
        out.push(Term { path: path.to_owned(), value: unescape(value)?, equal });
    }
    Ok(out)
}

/// The complaint about a field that a resource does not select by. Kinds with fields of their own word it differently.
fn unsupported(resource: &Resource, path: &str) -> ApiError {
    let own = matches!(
        (&*resource.group, &*resource.plural),
        ("", "pods" | "nodes" | "services" | "events" | "secrets" | "namespaces" | "replicationcontrollers")
            | ("events.k8s.io", "events")
    );
    ApiError::bad_request(match (&*resource.group, &*resource.plural) {
        _ if own => format!("field label not supported: {path}"),
        ("resource.k8s.io", "resourceslices") => {
            format!("field label not supported for {}, Kind={}: {path}", resource.api_version(), resource.kind)
        }
        ("batch", "jobs") => format!("field label {} not supported for Job", quote(path)),
        ("apps", "replicasets") | ("certificates.k8s.io", _) => format!("field label not supported: {path}"),
        _ if resource.custom => format!("field label not supported: {path}"),
        _ => format!("{} is not a known field selector: only \"metadata.name\", \"metadata.namespace\"", quote(path)),
    })
}

/// Splits at commas that no backslash precedes.
fn split_unescaped(text: &str) -> Vec<String> {
    let mut out = vec![String::new()];
    let mut escaped = false;
    for c in text.chars() {
        if c == ',' && !escaped {
            out.push(String::new());
        } else if let Some(last) = out.last_mut() {
            last.push(c);
        }
        escaped = c == '\\' && !escaped;
    }
    out
}

/// Splits a term at its first operator.
fn operator(term: &str) -> Option<(&str, &str, bool)> {
    for (at, _) in term.char_indices() {
        for (operator, equal) in [("!=", false), ("==", true), ("=", true)] {
            if let Some(value) = term[at..].strip_prefix(operator) {
                return Some((&term[..at], value, equal));
            }
        }
    }
    None
}

fn unescape(value: &str) -> std::result::Result<String, String> {
    let mut out = String::new();
    let mut chars = value.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some(c @ ('\\' | ',' | '=')) => out.push(c),
                Some(c) => return Err(format!("invalid field selector: invalid escape sequence: \\{c}")),
                None => return Err("invalid field selector: invalid escape sequence: \\".into()),
            },
            // Upstream shows the number of the character.
            ',' | '=' => {
                let number = u32::from(c);
                return Err(format!("invalid field selector: unescaped character in value: {number}"));
            }
            c => out.push(c),
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_escaped_is_told_by_its_number() {
        let told = parse_terms("a=b=c").err();
        assert_eq!(told.as_deref(), Some("invalid field selector: unescaped character in value: 61"));
    }

    #[test]
    fn a_name_of_a_path_is_a_name_whatever_is_in_it() {
        for name in ["a", "=x", "a,metadata.namespace=b", "a\\b", "!=c"] {
            let text = of_name(String::new(), name).expect("no selector");
            let terms = parse_terms(&text).expect("a selector");
            assert_eq!(
                terms.iter().map(|t| (&*t.path, &*t.value, t.equal)).collect::<Vec<_>>(),
                [("metadata.name", name, true)]
            );
        }
    }

    fn shown(requirement: &Requirement) -> String {
        let (key, values) = (&requirement.key, requirement.values.join(","));
        match requirement.operator {
            Operator::In => format!("{key} in ({values})"),
            Operator::NotIn => format!("{key} notin ({values})"),
            Operator::Exists => key.clone(),
            Operator::Missing => format!("!{key}"),
            Operator::Greater => format!("{key}>{values}"),
            Operator::Less => format!("{key}<{values}"),
        }
    }

    #[test]
    fn a_path_that_names_an_object_has_a_selector_for_it() {
        let of = |fields: &str| of_name(fields.to_owned(), "a").map_err(|error| error.code());
        assert_eq!(of(""), Ok("metadata.name=a".to_owned()));
        let more = "metadata.name=a,metadata.namespace=n";
        assert_eq!(of(more), Ok(more.to_owned()));
        assert_eq!((of("metadata.name=b"), of("metadata.namespace=n")), (Err(400), Err(400)));
    }

    #[test]
    fn a_label_selector_means_the_same_written_anew() {
        for text in [
            "a",
            "!a",
            "a=b",
            "a==b,c!=d",
            "a in (b, c),d notin(e)",
            "x/y=",
            "n>5,n<10",
            " a , ! b ",
            "in=notin,notin in (in)",
            "x in ()",
            "a in (,b)",
        ] {
            let first = parse_labels(text).unwrap_or_else(|e| panic!("{text}: {e}"));
            let anew = first.iter().map(shown).collect::<Vec<_>>().join(",");
            assert_eq!(parse_labels(&anew).as_ref(), Ok(&first), "{text}: {anew}");
        }
    }

    #[test]
    fn a_label_selector_that_means_nothing_is_refused_in_upstreams_words() {
        const VALUE: &str = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or \
                             '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or \
                             'my_value',  or '12345', regex used for validation is \
                             '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')";
        let refused = |text: &str| parse_labels(text).expect_err(text).replace(VALUE, "VALUE");
        for (text, why) in [
            ("a in (", "found '', expected: ',', ')' or identifier"),
            ("a in (=)", "found '=', expected: ',', ')' or identifier"),
            ("a in (b,", "found '', expected: ',', or identifier"),
            ("a in (b,,)", "found ')', expected: ',', or identifier"),
            ("a in (b", "found '', expected: ',' or ')'"),
            ("a>-5", "values[0][a]: Invalid value: \"-5\": VALUE"),
            (
                "a in (b,-,-,*)",
                "[values[0][a]: Invalid value: \"*\": VALUE, values[1][a]: Invalid value: \"-\": VALUE]",
            ),
            (
                "a<b*",
                "[values[0]: Invalid value: \"b*\": for 'Gt', 'Lt' operators, the value must be an integer, \
                 values[0][a]: Invalid value: \"b*\": VALUE]",
            ),
        ] {
            assert_eq!(refused(text), format!("unable to parse requirement: {why}"), "{text}");
        }
        let nameless = refused("a/=b");
        assert!(nameless.contains("\"a/\": name part must be non-empty; name part must consist of"), "{nameless}");
    }

    #[test]
    fn a_field_selector_means_the_same_written_anew() {
        let escape = |value: &str| value.replace('\\', "\\\\").replace(',', "\\,").replace('=', "\\=");
        for text in ["a=b", "a==b,c!=d", "a=", "a=x\\,y\\=z\\\\", "b=1,,a=2,"] {
            let first = parse_terms(text).expect(text);
            let term = |t: &Term| format!("{}{}{}", t.path, if t.equal { "=" } else { "!=" }, escape(&t.value));
            let anew = first.iter().map(term).collect::<Vec<_>>().join(",");
            assert_eq!(parse_terms(&anew).as_ref(), Ok(&first), "{text}: {anew}");
        }
    }

    #[test]
    fn no_text_makes_the_parsers_fail_badly() {
        let pieces = ["a", "/", "=", "!", "(", ")", ",", "in", "notin", " ", "<", "1", "\\", "\u{e4}", "\t"];
        let mut state: usize = 12345;
        for _ in 0..20_000 {
            let mut text = String::new();
            for _ in 0..state % 9 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                text.push_str(pieces[(state >> 33) % pieces.len()]);
            }
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407) | 1;
            let (labels, fields) = (parse_labels(&text), parse_terms(&text));
            drop((labels, fields, exact_name(&text)));
        }
    }
}
