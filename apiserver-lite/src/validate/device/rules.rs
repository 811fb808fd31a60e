//! Rules that claims, slices and classes share.

use std::collections::HashSet;
use std::sync::{Arc, LazyLock};

use serde_json::Value;

use super::super::{amounts, list, text, texts, volume};
use crate::cel::{self, Bounds, Inner, Type};
use crate::field_error::Report;
use crate::names;

/// Configurations in a claim or a class.
pub const CONFIGS: usize = 32;
/// Requests in a claim, and names of requests in a list of them.
pub const REQUESTS: usize = 32;
const SELECTORS: usize = 32;
/// Bytes of an expression, and of parameters.
const LONG: usize = 10 << 10;
const POOL_NAME: usize = 253;
const IDENTIFIER: usize = 32;
const BINDING_CONDITIONS: usize = 4;
const EFFECTS: [&str; 3] = ["NoExecute", "NoSchedule", "None"];

/// Whether a value is looked at for the first time. What was stored once stays good, whatever is asked of new ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Age {
    New,
    Stored,
}

/// Each item of a list that may have so many; of more than that none is looked at.
pub fn items<'v>(
    report: &mut Report,
    object: &'v Value,
    name: &str,
    most: usize,
    walk: impl FnMut(&mut Report, &'v Value),
) -> bool {
    let count = list(object, name).len();
    if count > most {
        report.at(name, |r| r.too_many(count, most));
        return false;
    }
    report.each(object, name, walk);
    true
}

/// The same for a list in which no key comes twice; those that do are told after everything else.
pub fn set<'v>(
    report: &mut Report,
    object: &'v Value,
    name: &str,
    most: usize,
    key: impl Fn(&'v Value) -> String,
    walk: impl FnMut(&mut Report, &'v Value),
) {
    if !items(report, object, name, most, walk) {
        return;
    }
    let mut seen = HashSet::new();
    report.each(object, name, |r, item| {
        let key = key(item);
        if seen.contains(&key) {
            r.duplicate(key.as_str());
        } else {
            seen.insert(key);
        }
    });
}

/// The key of items that are told apart by name.
pub fn by_name(item: &Value) -> String {
    text(item, "name").to_owned()
}

/// The key of items that are texts.
pub fn by_itself(item: &Value) -> String {
    item.as_str().unwrap_or_default().to_owned()
}

/// A name that is a DNS label; one that is missing is a wrong label too.
pub fn label(report: &mut Report, name: &str) {
    report.complaints(name, names::dns_label(name));
}

/// The name of a pool: subdomains with slashes in between.
pub fn pool(report: &mut Report, name: &str) {
    if name.is_empty() {
        return report.required("");
    }
    if name.len() > POOL_NAME {
        report.too_long(POOL_NAME);
    }
    for part in name.split('/') {
        report.complaints(part, names::dns_subdomain(part));
    }
}

/// The name of an attribute or a capacity, with or without a domain.
pub fn qualified(report: &mut Report, name: &str) {
    match name.split('/').collect::<Vec<_>>()[..] {
        [id] => identifier(report, id),
        [domain, id] => {
            match domain {
                "" => report.invalid("", "the domain must not be empty"),
                domain => volume::driver(report, domain),
            }
            match id {
                "" => report.invalid("", "the name must not be empty"),
                id => identifier(report, id),
            }
        }
        _ => report.invalid(name, "must not contain more than one slash"),
    }
}

/// The same with a domain in any case.
pub fn fully_qualified(report: &mut Report, name: &str) {
    qualified(report, name);
    if !name.contains('/') {
        report.invalid(name, "a fully qualified name must be a domain and a name separated by a slash");
    }
}

fn identifier(report: &mut Report, id: &str) {
    if id.len() > IDENTIFIER {
        report.too_long(IDENTIFIER);
    }
    report.complaints(id, names::c_identifier(id));
}

/// Which devices fit.
pub fn selectors(report: &mut Report, object: &Value, age: Age) {
    items(report, object, "selectors", SELECTORS, |r, selector| match selector.get("cel").filter(|c| c.is_object()) {
        None => r.miss("cel", ""),
        Some(cel) if age == Age::New => {
            let expression = text(cel, "expression");
            r.down(&["cel", "expression"], |r| compile(r, expression));
        }
        Some(_) => {}
    });
}

/// What an expression about a device knows.
pub static DEVICE: LazyLock<[(&str, Type); 1]> = LazyLock::new(|| {
    let fields = [
        ("driver", Type::Text),
        ("attributes", Type::map(Type::map(Type::Dyn))),
        ("capacity", Type::map(Type::map(Type::Opaque("kubernetes.Quantity")))),
        ("allowMultipleAllocations", Type::Bool),
    ];
    [("device", Type::object("kubernetes.DRADevice", &fields))]
});

fn compile(report: &mut Report, expression: &str) {
    if expression.len() > LONG {
        return report.too_long(LONG);
    }
    match cel::compile(expression, &*DEVICE) {
        Err(why) => report.invalid(expression, format_args!("compilation failed: {why}")),
        Ok(program) if !matches!(program.output, Type::Bool | Type::Dyn) => {
            let found = program.output.runtime_name();
            report.invalid(expression, format_args!("must evaluate to bool or the unknown type, not {found}"));
        }
        Ok(_) => {
            let cost = cel::estimate(expression, &*DEVICE, &[("device", &DEVICE_SIZES)]);
            if cost.is_some_and(|cost| cost > MOST_COST) {
                report.forbidden("too complex, exceeds cost limit");
            }
        }
    }
}

/// The most that an expression may cost for one device; what it does cost is cut off there too.
const MOST_COST: u64 = 1_000_000;

/// How large what an expression knows of a device may be: as many attributes, capacities and characters as a slice may
/// have.
static DEVICE_SIZES: LazyLock<Bounds> = LazyLock::new(|| {
    let sized = |max: u64| Arc::new(Bounds { max, ..Bounds::default() });
    let map =
        |values: Arc<Bounds>| Arc::new(Bounds { max: ATTRIBUTES, inner: Inner::Values(values), ..Bounds::default() });
    let fields = [
        ("driver", sized(DRIVER_NAME)),
        ("attributes", map(map(sized(ATTRIBUTE_VALUE)))),
        ("capacity", map(map(sized(0)))),
        ("allowMultipleAllocations", sized(0)),
    ];
    let fields = fields.map(|(name, bounds)| (name.to_owned(), bounds)).into();
    Bounds { inner: Inner::Fields(fields), ..Bounds::default() }
});

/// Attributes and capacities that a device has at most.
const ATTRIBUTES: u64 = 32;
/// Characters of an attribute's value.
const ATTRIBUTE_VALUE: u64 = 64;
/// Characters of a driver's name.
const DRIVER_NAME: u64 = 63;

/// What a driver is told about a device.
pub fn configuration(report: &mut Report, config: &Value, age: Age) {
    let Some(opaque) = config.get("opaque").filter(|o| o.is_object()) else { return report.miss("opaque", "") };
    report.at("opaque", |r| {
        r.at("driver", |r| volume::driver(r, text(opaque, "driver")));
        r.at("parameters", |r| raw(r, &opaque["parameters"], age));
    });
}

/// An object that nobody but a driver understands.
pub fn raw(report: &mut Report, value: &Value, age: Age) {
    match value {
        Value::Null => report.required(""),
        value if age == Age::New && value.to_string().len() > LONG => report.too_long(LONG),
        Value::Object(_) => {}
        _ => report.invalid("<value omitted>", "must be a valid JSON object"),
    }
}

/// `old` is null for a taint that is new.
pub fn taint(report: &mut Report, taint: &Value, old: &Value) {
    report.at("key", |r| r.complaints(text(taint, "key"), names::qualified_name(text(taint, "key"))));
    report.named(taint, "value", names::label_value);
    match text(taint, "effect") {
        effect if old.is_object() && effect == text(old, "effect") => {}
        "" => report.miss("effect", ""),
        _ => report.maybe_choice(taint, "effect", &EFFECTS),
    }
}

pub fn toleration(report: &mut Report, toleration: &Value) {
    report.named(toleration, "key", names::qualified_name);
    let value = text(toleration, "value");
    match text(toleration, "operator") {
        "Exists" if !value.is_empty() => report.bad("value", value, "must be empty for operator `Exists`"),
        "Exists" => {}
        "Equal" => report.at("value", |r| r.complaints(value, names::label_value(value))),
        "" => report.miss("operator", ""),
        other => report.at("operator", |r| r.not_supported(other, &["Equal", "Exists"])),
    }
    if !text(toleration, "effect").is_empty() {
        report.maybe_choice(toleration, "effect", &EFFECTS);
    }
}

/// Conditions that a device waits for before it is bound, and those that end the waiting.
pub fn binding(report: &mut Report, object: &Value) {
    const LISTS: [&str; 2] = ["bindingConditions", "bindingFailureConditions"];
    let [wanted, failures] = LISTS.map(|name| texts(object, name));
    for name in LISTS {
        items(report, object, name, BINDING_CONDITIONS, |r, condition| {
            let condition = condition.as_str().unwrap_or_default();
            r.complaints(condition, names::qualified_name(condition));
        });
    }
    for (name, conditions) in LISTS.into_iter().zip([&wanted, &failures]) {
        if conditions.len() > BINDING_CONDITIONS {
            continue;
        }
        for (index, condition) in conditions.iter().enumerate() {
            report.at(name, |r| {
                r.index(index, |r| {
                    if conditions[..index].contains(condition) {
                        r.duplicate(*condition);
                    }
                    if name == LISTS[1] && wanted.contains(condition) {
                        r.invalid(*condition, "bindingFailureConditions must not overlap with bindingConditions");
                    }
                });
            });
        }
    }
    match (wanted.is_empty(), failures.is_empty()) {
        (true, false) => {
            report.bad(LISTS[0], &object[LISTS[0]], "bindingConditions are required to use bindingFailureConditions");
        }
        (false, true) => {
            report.bad(LISTS[1], &object[LISTS[1]], "bindingFailureConditions are required to use bindingConditions");
        }
        _ => {}
    }
}

/// The name of a share: a UUID in its usual spelling.
pub fn share(report: &mut Report, id: &str) {
    let hex = |b: u8| b.is_ascii_hexdigit();
    let dashes = [8, 13, 18, 23];
    let usual =
        id.len() == 36 && id.bytes().enumerate().all(|(at, b)| if dashes.contains(&at) { b == b'-' } else { hex(b) });
    if usual && !id.bytes().any(|b| b.is_ascii_uppercase()) {
        return;
    }
    // Go's parser knows three more spellings, and none of another length.
    let bare = id.len() == 32 && id.bytes().all(hex);
    let known = [32, 36, 38, 45].contains(&id.len());
    if usual || bare {
        let why = "uid must be in RFC 4122 normalized form, `xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx` with lowercase \
                   hexadecimal characters";
        report.invalid(id, why);
    } else if known {
        report.invalid(id, "error validating uid: invalid UUID format");
    } else {
        report.invalid(id, format_args!("error validating uid: invalid UUID length: {}", id.len()));
    }
}

/// A quantity that is there.
pub fn amount(object: &Value, name: &str) -> Option<proto::quantity::Quantity> {
    amounts::quantity(&object[name])
}
