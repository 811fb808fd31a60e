//! The schema of a custom resource in a form that pruning, defaulting and validation walk.
//!
//! One node holds structure and checks alike, so the schemas under `allOf`, `anyOf`, `oneOf` and `not` are nodes too.
//! Whether a schema is structural is decided when its definition is written; reading one here never fails, and what
//! a structural schema cannot have is left out.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use regex::Regex;
use serde_json::Value;

use super::definition::follow_path;
use super::pattern;
use super::rules::Compiled;
use crate::cel::{Order, Type};

/// A node of a schema.
#[derive(Debug, Default)]
pub struct Schema {
    /// `object`, `array`, `string`, `integer`, `number`, `boolean`; empty where any type will do.
    pub ty: Box<str>,
    pub int_or_string: bool,
    /// Unknown fields are kept.
    pub preserve: bool,
    /// The value is an object with kind, version and metadata of its own.
    pub embedded: bool,
    pub nullable: bool,
    pub default: Option<Value>,
    pub properties: BTreeMap<Box<str>, Schema>,
    pub additional: Option<Box<Additional>>,
    pub items: Option<Box<Schema>>,
    pub list: ListType,
    pub list_keys: Vec<Box<str>>,
    /// The same as rules see it.
    pub order: Box<Order>,
    /// `x-kubernetes-map-type: atomic`.
    pub atomic: bool,
    pub checks: Option<Box<Checks>>,
    pub rules: Vec<Rule>,
    /// Whether there are rules here or anywhere below.
    pub ruled: bool,
    /// The same of lists of type `set` and `map`.
    pub listed: bool,
    /// The same of embedded objects.
    pub embeds: bool,
    /// The type that rules see, made when first used.
    pub declared: OnceLock<Option<Type>>,
}

/// `additionalProperties`: a schema of the values, or whether there may be any.
#[derive(Debug)]
pub enum Additional {
    Allowed(bool),
    Values(Schema),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ListType {
    /// As atomic, but items are matched with old ones by their place.
    #[default]
    Unsaid,
    Atomic,
    Set,
    Map,
}

/// What a value has to be, beyond its type.
#[derive(Debug, Default)]
pub struct Checks {
    /// Empty where the format is none that is checked.
    pub format: Box<str>,
    pub maximum: Option<f64>,
    pub minimum: Option<f64>,
    pub exclusive_maximum: bool,
    pub exclusive_minimum: bool,
    pub multiple_of: Option<f64>,
    pub max_length: Option<i64>,
    pub min_length: Option<i64>,
    pub max_items: Option<i64>,
    pub min_items: Option<i64>,
    pub max_properties: Option<i64>,
    pub min_properties: Option<i64>,
    pub required: Vec<Box<str>>,
    pub values: Vec<Value>,
    pub pattern: Option<Pattern>,
    pub all_of: Vec<Schema>,
    pub any_of: Vec<Schema>,
    pub one_of: Vec<Schema>,
    pub not: Option<Schema>,
}

/// A regular expression, compiled when first used: most are never.
#[derive(Debug)]
pub struct Pattern {
    pub text: Box<str>,
    compiled: OnceLock<Result<Regex, String>>,
}

impl Pattern {
    fn new(text: &str) -> Self {
        Pattern { text: text.into(), compiled: OnceLock::new() }
    }

    /// # Errors
    /// Why the text is no regular expression.
    pub fn is_match(&self, value: &str) -> Result<bool, &str> {
        match self.compiled.get_or_init(|| pattern::compile(&self.text)) {
            Ok(regex) => Ok(regex.is_match(value)),
            Err(error) => Err(error),
        }
    }
}

/// One of `x-kubernetes-validations`.
#[derive(Debug, Default)]
pub struct Rule {
    pub rule: String,
    pub message: String,
    pub message_expression: String,
    pub reason: Option<String>,
    /// The field that complaints are about, below the value; empty for the value itself.
    pub field: String,
    pub optional_old_self: Option<bool>,
    pub compiled: OnceLock<Compiled>,
}

impl Rule {
    /// `schema` is what the rule stands in.
    fn parse(value: &Value, schema: &Value) -> Self {
        let text = |key: &str| value[key].as_str().unwrap_or_default().to_owned();
        let field = value["fieldPath"].as_str().and_then(|path| follow_path(path, schema, true).ok());
        Rule {
            rule: text("rule"),
            message: text("message"),
            message_expression: text("messageExpression"),
            reason: value["reason"].as_str().map(ToOwned::to_owned),
            field: field.map(|found| found.text).unwrap_or_default(),
            optional_old_self: value["optionalOldSelf"].as_bool(),
            compiled: OnceLock::new(),
        }
    }
}

impl Schema {
    /// Reads `openAPIV3Schema`.
    pub fn parse(value: &Value) -> Self {
        let flag = |key: &str| value[key] == true;
        let mut schema = Schema {
            ty: value["type"].as_str().unwrap_or_default().into(),
            int_or_string: flag("x-kubernetes-int-or-string"),
            preserve: flag("x-kubernetes-preserve-unknown-fields"),
            embedded: flag("x-kubernetes-embedded-resource"),
            nullable: flag("nullable"),
            default: value.get("default").filter(|d| !d.is_null()).cloned(),
            properties: members(&value["properties"]),
            additional: match &value["additionalProperties"] {
                Value::Bool(allowed) => Some(Box::new(Additional::Allowed(*allowed))),
                values @ Value::Object(_) => Some(Box::new(Additional::Values(Schema::parse(values)))),
                _ => None,
            },
            items: value["items"].is_object().then(|| Box::new(Schema::parse(&value["items"]))),
            list: match value["x-kubernetes-list-type"].as_str() {
                Some("set") => ListType::Set,
                Some("map") => ListType::Map,
                Some(_) => ListType::Atomic,
                None => ListType::Unsaid,
            },
            list_keys: texts(&value["x-kubernetes-list-map-keys"]),
            order: Box::new(match value["x-kubernetes-list-type"].as_str() {
                Some("set") => Order::Set,
                Some("map") => Order::Keys(texts(&value["x-kubernetes-list-map-keys"])),
                _ => Order::Said,
            }),
            atomic: value["x-kubernetes-map-type"] == "atomic",
            checks: None,
            rules: value["x-kubernetes-validations"]
                .as_array()
                .into_iter()
                .flatten()
                .map(|rule| Rule::parse(rule, value))
                .collect(),
            ruled: false,
            listed: false,
            embeds: false,
            declared: OnceLock::new(),
        };
        schema.checks = Checks::parse(value, &schema.ty);
        schema.ruled = !schema.rules.is_empty() || schema.has_below(|below| below.ruled);
        schema.listed = matches!(schema.list, ListType::Set | ListType::Map) || schema.has_below(|below| below.listed);
        schema.embeds = schema.embedded || schema.has_below(|below| below.embeds);
        schema
    }

    /// Whether a schema right below this one is as asked for.
    fn has_below(&self, wanted: impl Fn(&Schema) -> bool) -> bool {
        self.items.as_deref().is_some_and(&wanted)
            || self.values().is_some_and(&wanted)
            || self.properties.values().any(wanted)
    }

    /// The schema of an object's member.
    pub fn member(&self, name: &str) -> Option<&Schema> {
        self.properties.get(name).or_else(|| self.values())
    }

    /// The schema of members that have none of their own.
    pub fn values(&self) -> Option<&Schema> {
        match self.additional.as_deref() {
            Some(Additional::Values(schema)) => Some(schema),
            _ => None,
        }
    }
}

impl Checks {
    fn parse(value: &Value, ty: &str) -> Option<Box<Self>> {
        let whole = |key: &str| value[key].as_i64();
        let number = |key: &str| value[key].as_f64();
        let schemas =
            |key: &str| value[key].as_array().into_iter().flatten().map(Schema::parse).collect::<Vec<Schema>>();
        let format = value["format"].as_str().unwrap_or_default();
        let checks = Checks {
            format: if super::formats::is_checked(ty, format) { format.into() } else { "".into() },
            maximum: number("maximum"),
            minimum: number("minimum"),
            exclusive_maximum: value["exclusiveMaximum"] == true,
            exclusive_minimum: value["exclusiveMinimum"] == true,
            multiple_of: number("multipleOf"),
            max_length: whole("maxLength"),
            min_length: whole("minLength"),
            max_items: whole("maxItems"),
            min_items: whole("minItems"),
            max_properties: whole("maxProperties"),
            min_properties: whole("minProperties"),
            required: texts(&value["required"]),
            values: value["enum"].as_array().cloned().unwrap_or_default(),
            pattern: value["pattern"].as_str().filter(|p| !p.is_empty()).map(Pattern::new),
            all_of: schemas("allOf"),
            any_of: schemas("anyOf"),
            one_of: schemas("oneOf"),
            not: value["not"].is_object().then(|| Schema::parse(&value["not"])),
        };
        let used = !checks.format.is_empty()
            || checks.maximum.is_some()
            || checks.minimum.is_some()
            || checks.multiple_of.is_some()
            || checks.max_length.is_some()
            || checks.min_length.is_some()
            || checks.max_items.is_some()
            || checks.min_items.is_some()
            || checks.max_properties.is_some()
            || checks.min_properties.is_some()
            || checks.pattern.is_some()
            || checks.not.is_some()
            || !(checks.required.is_empty()
                && checks.values.is_empty()
                && checks.all_of.is_empty()
                && checks.any_of.is_empty()
                && checks.one_of.is_empty());
        used.then(|| Box::new(checks))
    }
}

fn members(value: &Value) -> BTreeMap<Box<str>, Schema> {
    let members = value.as_object().into_iter().flatten();
    members.map(|(name, schema)| (name.as_str().into(), Schema::parse(schema))).collect()
}

fn texts(value: &Value) -> Vec<Box<str>> {
    value.as_array().into_iter().flatten().filter_map(|v| v.as_str().map(Into::into)).collect()
}
