//! Values of any schema type from a seed, in normal form: what decoding gives.

use proto::schema::{ListType, Prop, StructId, Type, TypeId, TypeSet};
use serde_json::{Map, Value, json};

pub struct Random {
    state: u64,
}

impl Random {
    pub fn new(seed: u64) -> Self {
        Random { state: seed | 1 }
    }

    pub fn next(&mut self) -> u64 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        self.state.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    fn pick<'a>(&mut self, from: &[&'a str]) -> &'a str {
        from[usize::try_from(self.below(from.len() as u64)).expect("small")]
    }
}

/// How much of a struct is filled.
#[derive(Clone, Copy, PartialEq)]
pub enum Fill {
    Some,
    /// Every field, two elements in each list and map of the struct itself and one in those of nested structs, nesting
    /// up to a depth that shows every field once.
    All,
}

pub fn object(set: &TypeSet, id: StructId, fill: Fill, random: &mut Random) -> Value {
    structure(set, id, fill, random, 0)
}

fn structure(set: &TypeSet, id: StructId, fill: Fill, random: &mut Random, depth: usize) -> Value {
    let mut map = Map::new();
    for prop in &set.get(id).props {
        let nested = !matches!(
            set.ty(prop.ty),
            Type::String | Type::Bytes | Type::Bool | Type::Int32 | Type::Int64 | Type::Double
        );
        let wanted = match fill {
            Fill::All => !nested || depth < 3,
            Fill::Some => random.chance(if depth < 3 { 50 } else { 15 }) && !(nested && depth > 6),
        };
        if !wanted {
            continue;
        }
        let value = value(set, prop.ty, fill, random, depth);
        if kept(set, prop, &value) {
            map.insert(prop.name.clone(), value);
        }
    }
    Value::Object(map)
}

/// Zero values that decoding drops are not in normal form.
fn kept(set: &TypeSet, prop: &Prop, value: &Value) -> bool {
    match (set.ty(prop.ty), value) {
        (Type::List(_), Value::Array(list)) => !list.is_empty(),
        (Type::Map(_), Value::Object(map)) => !map.is_empty(),
        (Type::String | Type::Bytes, Value::String(text)) => prop.pointer || prop.always || !text.is_empty(),
        (Type::Bool, Value::Bool(truth)) => prop.pointer || prop.always || *truth,
        (Type::Int32 | Type::Int64 | Type::Double, value) => prop.pointer || prop.always || value.as_f64() != Some(0.0),
        _ => true,
    }
}

/// Texts that a format could take for something else, or break.
const TEXTS: &[&str] = &[
    "a",
    "some text",
    "",
    "<b>&amp;",
    "\"quoted\"\\",
    "line\nline\ttab",
    "\u{e9}\u{2028}\u{1f600}",
    "\u{1}",
    "x/y.z-1",
    // What plain YAML reads as numbers, truths, times and nothing.
    "yes",
    "~",
    "null",
    "0x1F",
    "0o17",
    "017",
    "1e3",
    "1_000",
    "190:20:30",
    "-.inf",
    ".NaN",
    "2026-01-02",
    "2026-01-02T03:04:05Z",
    "<<",
    "=",
    // What it takes for its own signs.
    "- a",
    "? b",
    "a: b",
    "a #b",
    "# c",
    "&a",
    "*a",
    "!!str d",
    "| e",
    "> f",
    "%g",
    "@h",
    "`i`",
    "{j}",
    "[k]",
    "'l'",
    "---",
    "...",
    // White space at every end.
    " ",
    " m",
    "n ",
    "\n",
    "\n\n",
    "\no",
    "p\n",
    "q\n\n\n",
    " r\n  s\n",
    "t \nu",
    "\tv",
    "w\r\nx\r",
    "\u{85}y",
    "\u{2029}",
    "\u{a0}",
    "\u{feff}z",
    "\u{7f}\u{80}",
    "\u{fffe}\u{ffff}\u{10ffff}",
    // Longer than a line that is folded, as a word and as words.
    "0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789",
    "every word of this text is followed by another one, so that whoever folds lines has to find a place  for it: here",
    "a: line that has to be quoted,  and that is also a good deal longer than what fits between two ends of lines  ",
    "\u{1}this one can only be written with escapes, and is folded at a blank that may be followed by   other blanks",
];

fn text(random: &mut Random) -> String {
    random.pick(TEXTS).to_owned()
}

fn full_text(fill: Fill, random: &mut Random) -> String {
    match fill {
        // Hardly ever the same twice, so that fields which changed places are seen.
        Fill::All => format!("{}{}", text(random), random.below(10_000)),
        Fill::Some => text(random),
    }
}

fn any(random: &mut Random, depth: usize) -> Value {
    match random.below(if depth > 2 { 5 } else { 7 }) {
        0 => Value::Null,
        1 => random.chance(50).into(),
        2 => (random.next().cast_signed() >> random.below(64)).into(),
        3 => json!(1.5),
        4 => text(random).into(),
        5 => (0..random.below(3)).map(|_| any(random, depth + 1)).collect(),
        _ => (0..random.below(3)).map(|n| (format!("k{n}"), any(random, depth + 1))).collect::<Map<_, _>>().into(),
    }
}

fn object_of_any(random: &mut Random) -> Value {
    json!({"f:metadata": {"f:labels": {".": {}, "f:a": {}}}, "f:n": {format!("k:{{\"port\":{}}}", random.below(9)): {}}})
}

fn how_many(fill: Fill, random: &mut Random, depth: usize) -> u64 {
    match fill {
        Fill::All if depth == 0 => 2,
        Fill::All => 1,
        Fill::Some => random.below(3),
    }
}

fn value(set: &TypeSet, ty: TypeId, fill: Fill, random: &mut Random, depth: usize) -> Value {
    match set.ty(ty) {
        Type::String => full_text(fill, random).into(),
        Type::Bytes => random.pick(&["aGVsbG8=", "AA==", "/+8="]).into(),
        Type::Bool => (fill == Fill::All || random.chance(50)).into(),
        Type::Int32 => match random.below(4) {
            0 => i32::MIN.into(),
            1 => i32::MAX.into(),
            _ => (random.below(1000) + 1).into(),
        },
        Type::Int64 => match random.below(4) {
            0 => i64::MIN.into(),
            1 => i64::MAX.into(),
            _ => (random.below(1000) + 1).into(),
        },
        Type::Double => json!(random.below(1000) as f64 + 0.5),
        Type::Quantity => {
            random.pick(&["1", "500m", "1Gi", "1536Mi", "12e6", "-3", "100n", "9223372036854775807"]).into()
        }
        Type::Time => random.pick(&["2026-01-02T03:04:05Z", "1969-12-31T23:59:59Z", "0001-01-02T00:00:00Z"]).into(),
        Type::MicroTime => random.pick(&["2026-01-02T03:04:05.000001Z", "1969-12-31T23:59:59.999999Z"]).into(),
        Type::Duration => random.pick(&["1m30s", "0s", "-1.5ms", "2562047h47m16.854775807s"]).into(),
        Type::IntOrString => match random.chance(50) {
            true => random.below(70_000).into(),
            false => text(random).into(),
        },
        Type::Raw => json!({"apiVersion": "v1", "kind": "X", "v": any(random, 0)}),
        Type::Fields => object_of_any(random),
        Type::Json => match any(random, 0) {
            Value::Null => 1.into(),
            value => value,
        },
        Type::SchemaOrArray(id) => match random.chance(50) {
            true => structure(set, *id, Fill::Some, random, depth + 3),
            false => json!([structure(set, *id, Fill::Some, random, depth + 3)]),
        },
        Type::SchemaOrBool(id) => match random.chance(50) {
            true => structure(set, *id, Fill::Some, random, depth + 3),
            false => random.chance(50).into(),
        },
        Type::SchemaOrStrings(id) => match random.chance(50) {
            true => structure(set, *id, Fill::Some, random, depth + 3),
            false => json!([text(random)]),
        },
        Type::Struct(id) | Type::AtomicStruct(id) => structure(set, *id, fill, random, depth + 1),
        Type::List(ListType { element, .. }) => {
            let count = how_many(fill, random, depth);
            (0..count).map(|_| value(set, *element, fill, random, depth + 1)).collect()
        }
        Type::Map(map) => {
            let count = how_many(fill, random, depth);
            let entries =
                (0..count).map(|n| (format!("{}{n}", text(random)), value(set, map.value, fill, random, depth + 1)));
            entries.collect::<Map<_, _>>().into()
        }
    }
}
