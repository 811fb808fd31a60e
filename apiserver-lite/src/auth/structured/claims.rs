//! From the claims of a token to a user, by names of claims or by expressions.

use serde_json::{Map, Value, json};

use super::super::config_file::{known, list, text};
use crate::cel::{self, Budget, Failure, Program, Type, Value as Seen};
use crate::request::User;

/// Steps that the expressions about one token may take together.
const BUDGET: u64 = 10_000_000;

/// A checked expression, and the name of the value that it is about.
struct Expression {
    text: String,
    about: &'static str,
    ty: Type,
    program: Program,
}

/// The type of `user` in expressions.
fn user_type() -> Type {
    let texts = Type::list(Type::Text);
    let fields =
        [("username", Type::Text), ("uid", Type::Text), ("groups", texts.clone()), ("extra", Type::map(texts))];
    Type::object("kubernetes.UserInfo", &fields)
}

impl Expression {
    /// Reads an expression about `claims` or `user` that has to make one of some types.
    fn parse(said: &str, about: &'static str, wanted: &[Type], path: &str, errors: &mut Vec<String>) -> Option<Self> {
        let ty = if about == "user" { user_type() } else { Type::map(Type::Dyn) };
        let mut wrong = |why: String| errors.push(format!("{path}: Invalid value: {said:?}: {why}"));
        match cel::compile(said, &[(about, ty.clone())]) {
            Err(why) => wrong(format!("compilation failed: {why}")),
            Ok(program) if program.output != Type::Dyn && !wanted.contains(&program.output) => {
                let names: Vec<String> = wanted.iter().map(Type::runtime_name).collect();
                wrong(format!("must evaluate to {}", names.join(" or ")));
            }
            Ok(program) => return Some(Expression { text: said.into(), about, ty, program }),
        }
        None
    }

    fn evaluate(&self, value: &Value) -> Result<Value, String> {
        let variables = [(self.about, Seen::of(value, &self.ty))];
        match self.program.eval(&variables, &mut Budget::new(BUDGET)) {
            Ok(made) => made.to_json().ok_or_else(|| format!("expression {:?} makes no plain value", self.text)),
            Err(Failure::Error(why)) => Err(format!("expression {:?} resulted in error: {why}", self.text)),
            Err(Failure::OverBudget) => Err(format!("expression {:?} is too costly", self.text)),
        }
    }

    /// A text, or texts, that it has to make; an absent one is none.
    fn texts(&self, value: &Value) -> Result<Vec<String>, String> {
        match self.evaluate(value)? {
            Value::Null => Ok(Vec::new()),
            Value::String(text) if text.is_empty() => Ok(Vec::new()),
            Value::String(text) => Ok(vec![text]),
            Value::Array(items) => items
                .into_iter()
                .map(|item| match item {
                    Value::String(text) => Ok(text),
                    other => Err(format!("expression {:?} makes {other} where text is wanted", self.text)),
                })
                .collect(),
            other => Err(format!("expression {:?} makes {other} where text is wanted", self.text)),
        }
    }
}

/// What has to hold of claims and of the user made of them.
pub struct Rules {
    required: Vec<(String, String)>,
    /// With the message for who does not pass.
    claims: Vec<(Expression, String)>,
    user: Vec<(Expression, String)>,
}

impl Rules {
    pub fn parse(said: &Value, path: &str, errors: &mut Vec<String>) -> Self {
        let mut rules = Rules { required: Vec::new(), claims: Vec::new(), user: Vec::new() };
        for (index, rule) in list(said, "claimValidationRules").iter().enumerate() {
            let at = format!("{path}.claimValidationRules[{index}]");
            known(rule, &at, &["claim", "requiredValue", "expression", "message"], errors);
            match (text(rule, "claim"), text(rule, "expression")) {
                ("", "") => errors.push(format!("{at}: Required value: claim or expression is required")),
                ("", expression) => {
                    let read =
                        Expression::parse(expression, "claims", &[Type::Bool], &format!("{at}.expression"), errors);
                    rules.claims.extend(read.map(|read| (read, text(rule, "message").to_owned())));
                }
                (claim, "") => rules.required.push((claim.to_owned(), text(rule, "requiredValue").to_owned())),
                _ => errors.push(format!("{at}: Invalid value: claim and expression can't both be set")),
            }
        }
        for (index, rule) in list(said, "userValidationRules").iter().enumerate() {
            let at = format!("{path}.userValidationRules[{index}]");
            known(rule, &at, &["expression", "message"], errors);
            let read =
                Expression::parse(text(rule, "expression"), "user", &[Type::Bool], &format!("{at}.expression"), errors);
            rules.user.extend(read.map(|read| (read, text(rule, "message").to_owned())));
        }
        rules
    }

    pub fn check_email(&self) -> bool {
        self.claims.iter().any(|(rule, _)| rule.text.contains("claims.email_verified"))
    }

    pub fn check_claims(&self, claims: &Value) -> Result<(), String> {
        for (claim, wanted) in &self.required {
            match &claims[claim] {
                Value::Null => return Err(format!("oidc: required claim {claim} not present in ID token")),
                Value::String(said) if said == wanted => {}
                said => {
                    return Err(format!(
                        "oidc: required claim {claim} value does not match. Got = {said}, want = {wanted}"
                    ));
                }
            }
        }
        hold(&self.claims, claims)
    }

    pub fn check_user(&self, user: &User) -> Result<(), String> {
        let extra: Map<String, Value> = user.extra.iter().map(|(key, values)| (key.clone(), json!(values))).collect();
        hold(&self.user, &json!({"username": user.name, "uid": user.uid, "groups": user.groups, "extra": extra}))
    }
}

fn hold(rules: &[(Expression, String)], value: &Value) -> Result<(), String> {
    for (rule, message) in rules {
        if rule.evaluate(value)? != true {
            return Err(if message.is_empty() {
                format!("validation expression '{}' failed", rule.text)
            } else {
                message.clone()
            });
        }
    }
    Ok(())
}

/// Where a fact of the user comes from.
enum Source {
    Claim { name: String, prefix: String },
    Expression(Expression),
}

/// How claims become a user.
pub struct Mappings {
    username: Option<Source>,
    groups: Option<Source>,
    uid: Option<Source>,
    extra: Vec<(String, Expression)>,
}

impl Mappings {
    pub fn parse(said: &Value, path: &str, errors: &mut Vec<String>) -> Self {
        known(said, path, &["username", "groups", "uid", "extra"], errors);
        let texts = Type::list(Type::Text);
        let username = source(&said["username"], &format!("{path}.username"), &[Type::Text], true, errors);
        if username.is_none() && said["username"]["claim"].is_null() && said["username"]["expression"].is_null() {
            errors.push(format!("{path}.username: Required value: claim or expression is required"));
        }
        let wanted = [Type::Text, texts.clone(), Type::list(Type::Dyn)];
        let groups = source(&said["groups"], &format!("{path}.groups"), &wanted, true, errors);
        let uid = source(&said["uid"], &format!("{path}.uid"), &[Type::Text], false, errors);
        let mut extra: Vec<(String, Expression)> = Vec::new();
        for (index, fact) in list(said, "extra").iter().enumerate() {
            let at = format!("{path}.extra[{index}]");
            known(fact, &at, &["key", "valueExpression"], errors);
            let key = text(fact, "key");
            let domain = key.split_once('/').map_or("", |(domain, _)| domain);
            if domain.is_empty() || key != key.to_lowercase() {
                errors.push(format!("{at}.key: Invalid value: {key:?}: key must be a lowercase domain-prefix path"));
            } else if domain == "kubernetes.io"
                || domain == "k8s.io"
                || domain.ends_with(".kubernetes.io")
                || domain.ends_with(".k8s.io")
            {
                errors.push(format!(
                    "{at}.key: Invalid value: {key:?}: k8s.io, kubernetes.io and their subdomains are reserved"
                ));
            }
            if extra.iter().any(|(other, _)| other == key) {
                errors.push(format!("{at}.key: Duplicate value: {key:?}"));
            }
            let read = Expression::parse(
                text(fact, "valueExpression"),
                "claims",
                &wanted,
                &format!("{at}.valueExpression"),
                errors,
            );
            extra.extend(read.map(|read| (key.to_owned(), read)));
        }
        Mappings { username, groups, uid, extra }
    }

    pub fn names_email(&self) -> bool {
        let plain = |text: &str| text.replace("claims.email_verified", "");
        matches!(&self.username, Some(Source::Expression(e)) if plain(&e.text).contains("claims.email"))
    }

    pub fn check_email(&self) -> bool {
        let checks = |e: &Expression| e.text.contains("claims.email_verified");
        matches!(&self.username, Some(Source::Expression(e)) if checks(e)) || self.extra.iter().any(|(_, e)| checks(e))
    }

    /// # Errors
    /// When a claim is missing or is of another type.
    pub fn user(&self, claims: &Value) -> Result<User, String> {
        let name = match &self.username {
            None => return Err("oidc: no username is mapped".into()),
            Some(Source::Claim { name, prefix }) => {
                let said = claims[name]
                    .as_str()
                    .ok_or_else(|| format!("oidc: parse username claims {name:?}: claim not present"))?;
                // An address that nobody has checked is anybody's.
                let unverified = claims.get("email_verified").is_some_and(|verified| *verified != true);
                if name == "email" && unverified {
                    return Err("oidc: email not verified".into());
                }
                format!("{prefix}{said}")
            }
            Some(Source::Expression(expression)) => match expression.evaluate(claims)? {
                Value::String(name) => name,
                other => {
                    return Err(format!(
                        "oidc: error evaluating username claim expression: expected string, got {other}"
                    ));
                }
            },
        };
        if name.is_empty() {
            return Err("oidc: username is empty".into());
        }
        let groups = match &self.groups {
            None => Vec::new(),
            Some(Source::Expression(expression)) => expression.texts(claims)?,
            Some(Source::Claim { name, prefix }) => {
                let said = match &claims[name] {
                    Value::Null => Vec::new(),
                    Value::String(one) => vec![one.clone()],
                    Value::Array(all) => {
                        let texts: Option<Vec<String>> = all.iter().map(|g| g.as_str().map(Into::into)).collect();
                        texts.ok_or_else(|| format!("oidc: parse groups claim {name:?}: not all are strings"))?
                    }
                    _ => return Err(format!("oidc: parse groups claim {name:?}: neither a string nor a list")),
                };
                said.into_iter().map(|group| format!("{prefix}{group}")).collect()
            }
        };
        let uid = match &self.uid {
            None => String::new(),
            Some(Source::Claim { name, .. }) => claims[name]
                .as_str()
                .map(Into::into)
                .ok_or_else(|| format!("oidc: parse uid claims {name:?}: claim not present"))?,
            Some(Source::Expression(expression)) => match expression.evaluate(claims)? {
                Value::String(uid) => uid,
                other => {
                    return Err(format!("oidc: error evaluating uid claim expression: expected string, got {other}"));
                }
            },
        };
        let mut extra = Vec::new();
        for (key, expression) in &self.extra {
            let values = expression.texts(claims)?;
            if !values.is_empty() {
                extra.push((key.clone(), values));
            }
        }
        if let Some(id) = claims["jti"].as_str().filter(|id| !id.is_empty()) {
            extra.push((super::super::CREDENTIAL_ID.into(), vec![format!("JTI={id}")]));
        }
        extra.sort();
        Ok(User { name, uid, groups, extra })
    }
}

/// Reads one mapping; None where there is none, or nothing but mistakes.
fn source(said: &Value, path: &str, wanted: &[Type], prefixed: bool, errors: &mut Vec<String>) -> Option<Source> {
    let names: &[&str] = if prefixed { &["claim", "prefix", "expression"] } else { &["claim", "expression"] };
    known(said, path, names, errors);
    match (text(said, "claim"), text(said, "expression")) {
        ("", "") => None,
        (claim, "") => {
            if prefixed && !said["prefix"].is_string() {
                errors.push(format!("{path}.prefix: Required value: prefix is required when claim is set. It can be set to an empty string to disable prefixing"));
            }
            Some(Source::Claim { name: claim.into(), prefix: text(said, "prefix").into() })
        }
        ("", expression) => {
            if !said["prefix"].is_null() {
                errors.push(format!("{path}.prefix: Invalid value: prefix can't be set when expression is set"));
            }
            let read = Expression::parse(expression, "claims", wanted, &format!("{path}.expression"), errors);
            read.map(Source::Expression)
        }
        _ => {
            errors.push(format!("{path}: Invalid value: claim and expression can't both be set"));
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mappings(said: Value) -> Mappings {
        let mut errors = Vec::new();
        let read = Mappings::parse(&said, "m", &mut errors);
        assert_eq!(errors, Vec::<String>::new());
        read
    }

    #[test]
    fn claims_become_a_user_by_name_or_by_expression() {
        let claims = json!({"sub": "jane", "roles": ["a", "b"], "team": "x", "id": "7", "jti": "j"});
        let by_name = mappings(
            json!({"username": {"claim": "sub", "prefix": "o:"}, "groups": {"claim": "roles", "prefix": "g:"}, "uid": {"claim": "id"}}),
        );
        let user = by_name.user(&claims).expect("a user");
        assert_eq!((user.name.as_str(), user.uid.as_str()), ("o:jane", "7"));
        assert_eq!(user.groups, ["g:a", "g:b"]);
        assert_eq!(user.extra, [(super::super::super::CREDENTIAL_ID.to_owned(), vec!["JTI=j".to_owned()])]);
        let by_expression = mappings(json!({
            "username": {"expression": "'o:' + claims.sub"},
            "groups": {"expression": "claims.roles.filter(r, r != 'a')"},
            "extra": [{"key": "example.org/team", "valueExpression": "claims.team"}],
        }));
        let user = by_expression.user(&claims).expect("a user");
        assert_eq!((user.name.as_str(), user.groups), ("o:jane", vec!["b".to_owned()]));
        assert_eq!(user.extra[1], ("example.org/team".to_owned(), vec!["x".to_owned()]));
        assert!(by_expression.user(&json!({"sub": 1})).is_err());
    }

    #[test]
    fn an_address_has_to_be_verified() {
        let by_email = mappings(json!({"username": {"claim": "email", "prefix": ""}}));
        assert!(by_email.user(&json!({"email": "a@b", "email_verified": false})).is_err());
        assert!(by_email.user(&json!({"email": "a@b", "email_verified": true})).is_ok());
        assert!(mappings(json!({"username": {"expression": "claims.email"}})).names_email());
    }

    #[test]
    fn rules_refuse_with_their_message() {
        let mut errors = Vec::new();
        let said = json!({
            "claimValidationRules": [{"claim": "hd", "requiredValue": "example.org"}, {"expression": "claims.n > 1", "message": "n is small"}],
            "userValidationRules": [{"expression": "!user.username.startsWith('system:')", "message": "reserved"}],
        });
        let rules = Rules::parse(&said, "jwt[0]", &mut errors);
        assert_eq!(errors, Vec::<String>::new());
        assert_eq!(rules.check_claims(&json!({"hd": "example.org", "n": 2})), Ok(()));
        assert_eq!(rules.check_claims(&json!({"hd": "example.org", "n": 1})), Err("n is small".into()));
        assert!(rules.check_claims(&json!({"hd": "other", "n": 2})).is_err());
        let user = User { name: "system:x".into(), ..User::default() };
        assert_eq!(rules.check_user(&user), Err("reserved".into()));
    }
}
