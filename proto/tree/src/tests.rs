//! What a tree is, next to the same tree of the other crate.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};

use crate::{Map, Name, Value, from_value, is_same, json, know, to_value};

/// Numbers that look random and are the same each time.
struct Numbers(u64);

/// Names of which each tree has some.
const KNOWN: [&str; 6] = ["1", "a2", "a10", "\u{e4}5", "known", "a name of more than sixteen bytes"];

impl Numbers {
    /// Trees of these have names of both kinds.
    fn new(seed: u64) -> Self {
        know(KNOWN.into_iter().chain(KNOWN));
        Numbers(seed)
    }

    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).expect("31 bits") % end
    }

    fn name(&mut self) -> String {
        if self.below(8) == 0 {
            return KNOWN[self.below(KNOWN.len())].into();
        }
        let length = self.below(4);
        (0..length).map(|_| ['a', 'b', 'ä', '"'][self.below(4)]).collect::<String>() + &self.below(40).to_string()
    }

    fn tree(&mut self, depth: usize) -> real::Value {
        match self.below(if depth == 0 { 5 } else { 8 }) {
            0 => real::Value::Null,
            1 => real::Value::Bool(self.below(2) == 0),
            2 => real::Value::from(self.below(100)),
            3 => real::json!(0.5),
            4 => real::Value::String(self.name()),
            5 => (0..self.below(4)).map(|_| self.tree(depth - 1)).collect(),
            _ => (0..self.below(50)).map(|_| (self.name(), self.tree(depth - 1))).collect(),
        }
    }
}

fn both(value: &real::Value) -> Value {
    Value::from(value.clone())
}

#[test]
fn trees_are_read_and_written_as_by_the_other_crate() {
    let mut numbers = Numbers::new(1);
    for _ in 0..300 {
        let other = numbers.tree(3);
        let text = other.to_string();
        let read: Value = crate::from_str(&text).expect("JSON");
        assert_eq!(read, both(&other));
        assert_eq!((read.to_string(), format!("{read:#}")), (text, format!("{other:#}")));
        assert_eq!(format!("{read:?}"), format!("{other:?}"));
        assert_eq!(real::Value::from(read.clone()), other);
        assert_eq!(to_value(&read).expect("a tree"), read);
        assert_eq!(from_value::<real::Value>(read).expect("a tree"), other);
    }
}

#[test]
fn an_object_does_what_the_other_one_does_however_many_members_it_has() {
    let (mut numbers, mut most) = (Numbers::new(2), 0);
    for _ in 0..60 {
        let (mut mine, mut theirs) = (Map::new(), real::Map::new());
        // What is shared now and then stays as it was.
        let mut copies = Vec::new();
        for step in 0..200 {
            if numbers.below(10) == 0 {
                mine.share();
                copies.push((mine.clone(), theirs.clone()));
                copies.drain(..numbers.below(copies.len()));
            }
            let (name, value) = (numbers.name(), step);
            match numbers.below(9) {
                0..=3 => {
                    assert_eq!(
                        mine.insert(name.clone().into(), value.into()),
                        theirs.insert(name, value.into()).map(Value::from)
                    );
                }
                4 => assert_eq!(mine.remove(&name), theirs.remove(&name).map(Value::from)),
                5 => {
                    let made = mine.entry(name.as_str()).or_insert_with(|| value.into()).clone();
                    assert_eq!(made, both(theirs.entry(name).or_insert(value.into())));
                }
                6 => {
                    *mine.member(&name) = value.into();
                    theirs.insert(name, value.into());
                }
                7 if step % 2 == 0 => {
                    if let Some(value) = mine.get_mut(&name) {
                        *value = json!({"a": {"b": step}});
                    }
                    if let Some(value) = theirs.get_mut(&name) {
                        *value = real::json!({"a": {"b": step}});
                    }
                }
                7 if step % 3 == 0 => {
                    mine.values_mut().filter(|v| v.is_object()).for_each(|v| v["a"]["c"] = json!([{}]));
                    theirs.values_mut().filter(|v| v.is_object()).for_each(|v| v["a"]["c"] = real::json!([{}]));
                }
                _ if step % 20 == 0 => {
                    mine.retain(|name, _| !name.ends_with('7'));
                    theirs.retain(|name, _| !name.ends_with('7'));
                }
                _ => assert_eq!(mine.get(&name).cloned(), theirs.get(&name).cloned().map(Value::from)),
            }
            assert_eq!(mine.len(), theirs.len());
            most = most.max(mine.len());
        }
        for (copy, other) in copies {
            assert_eq!(Value::Object(copy), both(&real::Value::Object(other)));
        }
        assert!(mine.keys().eq(theirs.keys()), "in order");
        assert!(mine.iter().rev().map(|(name, _)| name).eq(theirs.keys().rev()));
        assert!(mine.values().cloned().eq(theirs.values().map(both)));
        let again: Map<String, Value> = mine.clone().into_iter().rev().collect();
        assert_eq!(again, mine);
        let mut other = again;
        other.values_mut().for_each(|value| *value = Value::Null);
        assert_ne!(other, mine);
    }
    assert!(most > 32, "some were large");
}

#[test]
fn copies_of_what_is_shared_are_one_until_they_are_changed() {
    let tree = |n: i32| json!({"a": {"b": {"c": n}, "d": [{"e": 1}, {"f": {}}]}, "g": {"h": 2}});
    let one = |a: &Value, b: &Value| a.as_object().zip(b.as_object()).is_some_and(|(a, b)| a.is(b));
    let mut first = tree(1);
    assert!(!one(&first, &first.clone()), "not shared yet");
    first.share();
    let mut second = first.clone();
    assert!(one(&first, &second) && first == second && first == tree(1));
    // None of these changes anything.
    let members = second["a"].as_object_mut().expect("an object");
    assert!(members.get_mut("x").is_none() && members.remove("x").is_none());
    assert!(one(&first["a"], &second["a"]), "it is still that of the first");
    second["a"]["b"]["c"] = 3.into();
    assert_eq!((&first, &second), (&tree(1), &tree(3)));
    assert!(one(&first["g"], &second["g"]) && one(&first["a"]["d"][1], &second["a"]["d"][1]));
    assert!(!one(&first["a"]["b"], &second["a"]["b"]));
    // What was copied is shared again, and what was not stays.
    second.share();
    assert!(one(&second["a"]["b"], &second.clone()["a"]["b"]) && one(&first["g"], &second["g"]));
    drop(first);
    assert_eq!(second.as_object().cloned().map(|map| map.into_iter().count()), Some(2));
    second["a"].as_object_mut().expect("an object").clear();
    assert_eq!(second, json!({"a": {}, "g": {"h": 2}}));
}

#[test]
fn a_name_is_its_text_whichever_way_it_is_kept() {
    let mut numbers = Numbers::new(3);
    know(["too late"]);
    assert!(Name::from("too late").as_fixed().is_none() && Name::default().is_empty());
    let texts: Vec<String> = (0..400).map(|_| numbers.name()).collect();
    let hash = |of: &dyn Fn(&mut DefaultHasher)| {
        let mut hasher = DefaultHasher::new();
        of(&mut hasher);
        hasher.finish()
    };
    for (text, other) in texts.iter().zip(texts.iter().rev()) {
        let (name, fixed) = (Name::from(text), Name::fixed(text.clone().leak()));
        assert_eq!(name.as_fixed().is_some(), KNOWN.contains(&text.as_str()), "{text}");
        assert!(name == fixed && name.clone() == *text && *text == name);
        let another = Name::from(other);
        assert_eq!(name == another, text == other);
        assert_eq!([&name, &fixed].map(|name| name.cmp(&Name::from(other))), [text.cmp(other); 2]);
        for name in [&name, &fixed] {
            assert_eq!(hash(&|state| name.hash(state)), hash(&|state| text.hash(state)));
            let shown = (format!("{name:?}{name:>20}"), String::from(name), name.len());
            assert_eq!(shown, (format!("{text:?}{text:>20}"), text.clone(), text.len()));
            let written = crate::to_string(name).expect("JSON");
            assert_eq!(
                (crate::from_str::<Name>(&written).expect("a name"), written),
                (name.clone(), format!("{text:?}"))
            );
        }
    }
}

#[test]
fn texts_of_any_length_are_the_same_where_every_byte_is() {
    let long: String = ('a'..='z').collect();
    for length in 0..=long.len() {
        let text = &long[..length];
        let copy = text.to_owned();
        assert!(is_same(text, text) && is_same(text, &copy));
        for at in 0..length {
            let mut other = text.to_owned();
            other.replace_range(at..=at, "-");
            assert!(!is_same(text, &other) && !is_same(&other, text), "{text} {other}");
            assert!(!is_same(text, &text[..at]));
            for (a, b) in [(text, &*other), (&other, text), (text, &text[..at]), (&text[..at], text), (text, text)] {
                assert_eq!(Name::from(a).cmp(&Name::from(b)), a.cmp(b), "{a} {b}");
            }
        }
    }
}

#[test]
fn an_object_that_was_large_equals_one_that_never_was() {
    let mut shrunk: Map<String, Value> = (0..100).map(|n| (format!("n{n}"), Value::from(n))).collect();
    shrunk.retain(|name, _| name.len() == 2);
    let small: Map<String, Value> = (0..10).map(|n| (format!("n{n}"), Value::from(n))).collect();
    assert_eq!((&shrunk, shrunk.len()), (&small, 10));
    let hash = |map: &Map<String, Value>| {
        let mut hasher = DefaultHasher::new();
        map.hash(&mut hasher);
        hasher.finish()
    };
    assert_eq!(hash(&shrunk), hash(&small));
}

#[test]
fn a_value_takes_no_more_room_than_that_of_the_other_crate() {
    assert!(size_of::<Value>() <= size_of::<real::Value>(), "{} bytes", size_of::<Value>());
}

#[test]
fn very_many_members_in_any_order_take_no_time_to_speak_of() {
    let count = 200_000_usize;
    let map: Map<String, Value> = (0..count).map(|n| ((n * 7919 % count).to_string(), Value::Null)).collect();
    assert_eq!(map.len(), count);
    // A table of so many would be moved about for minutes.
    assert!(map.is_spread() && !json!({"a": 1}).as_object().expect("an object").is_spread());
}

#[test]
fn parts_are_found_and_made() {
    let mut value = json!({"a": [{"b": 1}], "c/d~": {"": true}});
    assert_eq!(value["a"][0]["b"], 1);
    assert!(value["a"][1]["b"].is_null() && value["a"]["b"].is_null() && value["x"]["y"].is_null());
    value["x"]["y"] = "z".into();
    *value["a"].get_mut(0).expect("an item") = json!([null]);
    assert_eq!(value, json!({"a": [[null]], "c/d~": {"": true}, "x": {"y": "z"}}));
    for pointer in ["", "/a/0/0", "/c~1d~0/", "/x/y", "/a/00", "/a/+0", "/a/1", "x", "/x/y/z"] {
        let other = real::Value::from(value.clone());
        assert_eq!(value.pointer(pointer).cloned(), other.pointer(pointer).map(both), "{pointer}");
        assert_eq!(value.pointer_mut(pointer).is_some(), other.pointer(pointer).is_some());
    }
    assert_eq!(value["x"].take(), json!({"y": "z"}));
    assert!(value["x"].is_null());
}

#[test]
fn trees_in_code_are_those_of_the_other_crate() {
    const NAME: &str = "named";
    let (number, some, list) = (7, Some("text"), vec![1.5, 2.0]);
    macro_rules! tree {
        ($($tokens:tt)+) => { (json!($($tokens)+), both(&real::json!($($tokens)+))) };
    }
    for (mine, other) in [
        tree!(null),
        tree!([]),
        tree!({}),
        tree!(number + 1),
        tree!([null, true, [1, [2]], {"a": {}}, -1, some,]),
        tree!({"a": null, NAME: [], (format!("{number}:")): {"b": [null]}, "c": some.map(str::len), "d": list, "a": 1,}),
        tree!({"e": if number > 3 { "more" } else { "less" }, "f": {"g": false}, "h": None::<i32>, "i": u64::MAX}),
    ] {
        assert_eq!(mine, other);
    }
}

#[test]
fn trees_go_into_others_as_they_are() {
    let (inner, text) = (json!({"a": [1]}), String::from("x"));
    let (by_ref, list) = (&inner["a"], [&inner, &inner]);
    let outer = json!({"b": inner, "c": by_ref, "d": text, "e": *text, "f": [inner["a"][0], inner["none"]], "g": list});
    let spelled = r#"{"b":{"a":[1]},"c":[1],"d":"x","e":"x","f":[1,null],"g":[{"a":[1]},{"a":[1]}]}"#;
    assert_eq!(outer.to_string(), spelled);
}

#[test]
fn values_equal_what_they_hold_and_nothing_else() {
    let value = json!({"n": 5, "f": 0.5, "t": "x", "b": true, "u": u64::MAX});
    let text = String::from("x");
    assert_eq!([value["n"] == 5, value["n"] == 5_u64, 5_i64 == value["n"], value["n"] == 6], [true, true, true, false]);
    assert_eq!(
        [value["f"] == 0.5, value["b"] == true, value["u"] == u64::MAX, value["u"] == -1],
        [true, true, true, false]
    );
    assert_eq!([value["t"] == "x", "x" == value["t"], value["t"] == *"x", value["t"] == text], [true; 4]);
    assert_eq!(
        [value["t"] == 0, value["n"] == "5", value["x"] == 0, value["x"] == "", value["b"] == false],
        [false; 5]
    );
}

#[test]
fn members_in_any_order_become_the_object_that_putting_them_in_one_by_one_makes() {
    let mut numbers = Numbers::new(7);
    let mut twice = 0;
    for _ in 0..500 {
        let count = numbers.below(60);
        let members: Vec<(Name, Value)> = (0..count).map(|at| (numbers.name().into(), at.into())).collect();
        let mut one_by_one = Map::new();
        let again = members
            .iter()
            .fold(false, |again, (name, value)| one_by_one.insert(name.clone(), value.clone()).is_some() || again);
        let collected: Map<String, Value> = members.iter().cloned().collect();
        assert_eq!((&collected, collected.iter().count()), (&one_by_one, one_by_one.len()));
        assert_eq!(Map::of(members), (!again).then_some(one_by_one), "of two of one name neither is meant");
        twice += usize::from(again);
    }
    assert!((100..400).contains(&twice), "{twice} had a name twice");
}
