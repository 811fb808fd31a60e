//! Profiles of system calls on the node: what is wrong with one that the runtime refused.
//!
//! The runtime reads the file itself and is the judge. Its words rarely say where the mistake is, so the file is looked at
//! again after a refusal, by the shape of the OCI runtime specification (`linux.seccomp`).

use std::path::Path;

use serde_json::Value;

const ACTIONS: [&str; 9] = [
    "SCMP_ACT_KILL",
    "SCMP_ACT_KILL_PROCESS",
    "SCMP_ACT_KILL_THREAD",
    "SCMP_ACT_TRAP",
    "SCMP_ACT_ERRNO",
    "SCMP_ACT_TRACE",
    "SCMP_ACT_ALLOW",
    "SCMP_ACT_LOG",
    "SCMP_ACT_NOTIFY",
];
const OPERATORS: [&str; 7] =
    ["SCMP_CMP_NE", "SCMP_CMP_LT", "SCMP_CMP_LE", "SCMP_CMP_EQ", "SCMP_CMP_GE", "SCMP_CMP_GT", "SCMP_CMP_MASKED_EQ"];

/// What is wrong with the profile at a path, with the place inside it; `None` when nothing is, or it cannot be read.
pub fn mistake_in(path: &Path) -> Option<String> {
    let text = std::fs::read(path).ok()?;
    let why = check(&text).err()?;
    Some(format!("seccomp profile {}: {why}", path.display()))
}

/// # Errors
/// The JSON path of the first mistake, and what is wrong there.
pub fn check(text: &[u8]) -> Result<(), String> {
    let profile: Value = serde_json::from_slice(text).map_err(|e| format!("$: not JSON: {e}"))?;
    if !profile.is_object() {
        return Err(wrong("$", "an object"));
    }
    action(profile.get("defaultAction"), "$.defaultAction", true)?;
    number(profile.get("defaultErrnoRet"), "$.defaultErrnoRet")?;
    for list in ["architectures", "flags"] {
        strings(profile.get(list), &format!("$.{list}"), false)?;
    }
    for (i, rule) in array(profile.get("syscalls"), "$.syscalls")?.iter().enumerate() {
        let at = format!("$.syscalls[{i}]");
        if !rule.is_object() {
            return Err(wrong(&at, "an object"));
        }
        strings(rule.get("names"), &format!("{at}.names"), true)?;
        action(rule.get("action"), &format!("{at}.action"), true)?;
        number(rule.get("errnoRet"), &format!("{at}.errnoRet"))?;
        for (j, argument) in array(rule.get("args"), &format!("{at}.args"))?.iter().enumerate() {
            let at = format!("{at}.args[{j}]");
            if !argument.is_object() {
                return Err(wrong(&at, "an object"));
            }
            for field in ["index", "value", "valueTwo"] {
                number(argument.get(field), &format!("{at}.{field}"))?;
            }
            one_of(argument.get("op"), &format!("{at}.op"), &OPERATORS, true)?;
        }
    }
    Ok(())
}

fn wrong(at: &str, wanted: &str) -> String {
    format!("{at}: must be {wanted}")
}

fn array<'a>(value: Option<&'a Value>, at: &str) -> Result<&'a [Value], String> {
    match value {
        None | Some(Value::Null) => Ok(&[]),
        Some(Value::Array(items)) => Ok(items),
        Some(_) => Err(wrong(at, "a list")),
    }
}

fn strings(value: Option<&Value>, at: &str, required: bool) -> Result<(), String> {
    let items = array(value, at)?;
    if required && items.is_empty() {
        return Err(wrong(at, "a list that is not empty"));
    }
    match items.iter().position(|item| !item.is_string()) {
        Some(i) => Err(wrong(&format!("{at}[{i}]"), "a string")),
        None => Ok(()),
    }
}

fn number(value: Option<&Value>, at: &str) -> Result<(), String> {
    match value {
        None | Some(Value::Null) => Ok(()),
        Some(value) if value.is_u64() => Ok(()),
        Some(_) => Err(wrong(at, "a whole number that is not negative")),
    }
}

fn action(value: Option<&Value>, at: &str, required: bool) -> Result<(), String> {
    one_of(value, at, &ACTIONS, required)
}

fn one_of(value: Option<&Value>, at: &str, words: &[&str], required: bool) -> Result<(), String> {
    match value {
        None if !required => Ok(()),
        Some(Value::String(word)) if words.contains(&word.as_str()) => Ok(()),
        _ => Err(wrong(at, &format!("one of {}", words.join(", ")))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mistakes_are_named_by_their_place() {
        let cases = [
            (r#"{"defaultAction":"SCMP_ACT_ALLOW"}"#, None),
            (r#"{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"names":["a"],"action":"SCMP_ACT_LOG"}]}"#, None),
            ("{", Some("$:")),
            ("[]", Some("$:")),
            (r#"{"defaultAction":5}"#, Some("$.defaultAction:")),
            (r#"{"defaultAction":"ALLOW"}"#, Some("$.defaultAction:")),
            (r#"{"defaultAction":"SCMP_ACT_ALLOW","syscalls":{}}"#, Some("$.syscalls:")),
            (
                r#"{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"names":["a",1],"action":"SCMP_ACT_LOG"}]}"#,
                Some("$.syscalls[0].names[1]:"),
            ),
            (
                r#"{"defaultAction":"SCMP_ACT_LOG","syscalls":[{"names":["a"],"action":"SCMP_ACT_LOG","args":[{"index":-1}]}]}"#,
                Some("$.syscalls[0].args[0].index:"),
            ),
        ];
        for (text, place) in cases {
            match (check(text.as_bytes()), place) {
                (Ok(()), None) => {}
                (Err(why), Some(place)) => assert!(why.starts_with(place), "{why}"),
                (result, place) => panic!("{text}: {result:?}, wanted {place:?}"),
            }
        }
    }
}
