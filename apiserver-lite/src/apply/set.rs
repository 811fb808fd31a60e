//! Sets of field paths as tries, with the algebra of structured-merge-diff and the `FieldsV1` text form.
//!
//! A path and the paths below it are independent members: a set may hold `spec.template` without `spec.template.spec`
//! and the other way round. Nodes are sorted, so every operation is one merge of two sorted lists.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::fmt::Write as _;

use proto::json::Walk;
use serde_json::{Map, Value};

use super::element::{BadElement, Element};

/// One element of a path. `member` says whether the path that ends here is in the set.
#[derive(Debug, Clone, PartialEq)]
pub struct Node<'a> {
    pub element: Element<'a>,
    pub member: bool,
    pub children: Set<'a>,
}

/// Sorted nodes, none of which is without any member.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Set<'a> {
    nodes: Vec<Node<'a>>,
}

impl<'a> Set<'a> {
    pub const fn new() -> Self {
        Set { nodes: Vec::new() }
    }

    /// A set of paths of field names.
    pub fn of_names(paths: &[&[&'a str]]) -> Self {
        let mut set = Set::new();
        for path in paths {
            set.insert(&path.iter().map(|name| Element::name(name)).collect::<Vec<_>>());
        }
        set
    }

    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    pub fn nodes(&self) -> &[Node<'a>] {
        &self.nodes
    }

    /// Adds the path that ends at `element`, and what is below it. Elements may come in any order; see [`Set::sort`].
    pub fn push(&mut self, element: Element<'a>, member: bool, children: Set<'a>) {
        if member || !children.is_empty() {
            self.nodes.push(Node { element, member, children });
        }
    }

    /// Adds the nodes of a set whose elements come after all that are here.
    pub fn append(&mut self, mut other: Set<'a>) {
        self.nodes.append(&mut other.nodes);
    }

    /// Puts pushed nodes in order. Nodes that are there twice become one.
    pub fn sort(&mut self) {
        if self.nodes.is_sorted_by(|a, b| a.element < b.element) {
            return;
        }
        self.nodes.sort_by(|a, b| a.element.cmp(&b.element));
        self.nodes.dedup_by(|later, first| {
            let same = later.element == first.element;
            if same {
                first.member |= later.member;
                first.children = first.children.union(&later.children);
            }
            same
        });
    }

    pub fn insert(&mut self, path: &[Element<'a>]) {
        let Some((first, rest)) = path.split_first() else { return };
        let at = match self.nodes.binary_search_by(|n| n.element.cmp(first)) {
            Ok(at) => at,
            Err(at) => {
                let node = Node { element: first.clone(), member: false, children: Set::new() };
                self.nodes.insert(at, node);
                at
            }
        };
        if rest.is_empty() {
            self.nodes[at].member = true;
        } else {
            self.nodes[at].children.insert(rest);
        }
    }

    pub fn get(&self, element: &Element<'_>) -> Option<&Node<'a>> {
        let at = self.nodes.binary_search_by(|n| n.element.cmp(element)).ok()?;
        Some(&self.nodes[at])
    }

    pub fn contains(&self, path: &[Element<'_>]) -> bool {
        match path {
            [] => false,
            [last] => self.get(last).is_some_and(|n| n.member),
            [first, rest @ ..] => self.get(first).is_some_and(|n| n.children.contains(rest)),
        }
    }

    /// Whether some path is in both sets.
    pub fn overlaps(&self, other: &Set<'_>) -> bool {
        let mut both = false;
        self.zip(other, |mine, theirs| {
            if let (Some(mine), Some(theirs)) = (mine, theirs) {
                both = both || mine.member && theirs.member || mine.children.overlaps(&theirs.children);
            }
        });
        both
    }

    /// Whether some path is in this set and in a `FieldsV1` tree in normal form.
    pub fn overlaps_fields(&self, fields: &Value) -> bool {
        self.nodes.iter().any(|node| {
            let Some(below) = fields.get(node.element.text()) else { return false };
            let member = || below.as_object().is_some_and(|b| b.is_empty() || b.contains_key("."));
            node.member && member() || node.children.overlaps_fields(below)
        })
    }

    /// Paths in either set.
    #[must_use]
    pub fn union(&self, other: &Set<'a>) -> Set<'a> {
        let mut out = Set { nodes: Vec::with_capacity(self.nodes.len().max(other.nodes.len())) };
        self.zip(other, |mine, theirs| match (mine, theirs) {
            (Some(mine), Some(theirs)) => {
                let children = mine.children.union(&theirs.children);
                out.push(mine.element.clone(), mine.member || theirs.member, children);
            }
            (Some(node), None) | (None, Some(node)) => out.nodes.push(node.clone()),
            (None, None) => {}
        });
        out
    }

    /// Paths in both sets.
    #[must_use]
    pub fn intersection(&self, other: &Set<'_>) -> Set<'a> {
        let mut out = Set::new();
        self.zip(other, |mine, theirs| {
            if let (Some(mine), Some(theirs)) = (mine, theirs) {
                let children = mine.children.intersection(&theirs.children);
                out.push(mine.element.clone(), mine.member && theirs.member, children);
            }
        });
        out
    }

    /// Paths of this set that are not in the other; a path in the other takes nothing below it away.
    #[must_use]
    pub fn difference(&self, other: &Set<'_>) -> Set<'a> {
        let mut out = Set::new();
        self.zip(other, |mine, theirs| match (mine, theirs) {
            (Some(mine), Some(theirs)) => {
                let children = mine.children.difference(&theirs.children);
                out.push(mine.element.clone(), mine.member && !theirs.member, children);
            }
            (Some(mine), None) => out.nodes.push(mine.clone()),
            (None, _) => {}
        });
        out
    }

    /// [`Set::difference`] of a set that nobody needs afterwards: what stays is not copied.
    #[must_use]
    pub fn minus(self, other: &Set<'_>) -> Set<'a> {
        self.keep(other, &|mine, theirs| {
            mine.member &= !theirs.member;
            mine.children = std::mem::take(&mut mine.children).minus(&theirs.children);
        })
    }

    /// Paths of this set that are neither in the other nor below a path in the other.
    #[must_use]
    pub fn without(self, other: &Set<'_>) -> Set<'a> {
        self.keep(other, &|mine, theirs| {
            mine.member &= !theirs.member;
            let below = std::mem::take(&mut mine.children);
            mine.children = if theirs.member { Set::new() } else { below.without(&theirs.children) };
        })
    }

    /// Changes the nodes that the other set has too, and drops those that are left without a member.
    fn keep(mut self, other: &Set<'_>, change: &dyn Fn(&mut Node<'a>, &Node<'_>)) -> Set<'a> {
        let mut others = other.nodes.iter().peekable();
        self.nodes.retain_mut(|mine| {
            let order = loop {
                match others.peek().map(|theirs| theirs.element.cmp(&mine.element)) {
                    Some(Ordering::Less) => drop(others.next()),
                    order => break order,
                }
            };
            if let (Some(Ordering::Equal), Some(theirs)) = (order, others.peek()) {
                change(mine, theirs);
            }
            mine.member || !mine.children.is_empty()
        });
        self
    }

    /// Calls `visit` with the nodes of both sets side by side, in order.
    fn zip<'s, 'o, 'b>(
        &'s self,
        other: &'o Set<'b>,
        mut visit: impl FnMut(Option<&'s Node<'a>>, Option<&'o Node<'b>>),
    ) {
        let (mut left, mut right) = (self.nodes.iter().peekable(), other.nodes.iter().peekable());
        loop {
            let order = match (left.peek(), right.peek()) {
                (None, None) => return,
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (Some(a), Some(b)) => a.element.cmp(&b.element),
            };
            let mine = if order.is_le() { left.next() } else { None };
            let theirs = if order.is_ge() { right.next() } else { None };
            visit(mine, theirs);
        }
    }

    /// Every path as text, a path before those below its siblings: members of a level first, then what is below them.
    pub fn paths(&self) -> Vec<String> {
        let mut out = Vec::new();
        self.gather("", &mut out);
        out
    }

    fn gather(&self, prefix: &str, out: &mut Vec<String>) {
        out.extend(self.nodes.iter().filter(|n| n.member).map(|n| format!("{prefix}{}", n.element)));
        for node in self.nodes.iter().filter(|n| !n.children.is_empty()) {
            let mut deeper = prefix.to_owned();
            let _ = write!(deeper, "{}", node.element);
            node.children.gather(&deeper, out);
        }
    }

    /// Reads a `FieldsV1` tree. Elements of a kind that is not known are left out.
    ///
    /// # Errors
    /// An element that is none, or a tree with something else than objects.
    pub fn parse(fields: &'a Value) -> Result<Self, BadElement> {
        Ok(Self::parse_level(fields)?.0)
    }

    /// The paths below a node, and whether the node itself is a member.
    fn parse_level(fields: &'a Value) -> Result<(Self, bool), BadElement> {
        let map = match fields {
            Value::Object(map) => map,
            Value::Null => return Ok((Set::new(), true)),
            other => return Err(BadElement::of(other.to_string())),
        };
        let mut set = Set { nodes: Vec::with_capacity(map.len()) };
        let mut member = false;
        for (key, value) in map {
            if key == "." {
                member = true;
                continue;
            }
            let Some(element) = Element::parse(key)? else { continue };
            let (children, child) = Self::parse_level(value)?;
            set.push(element, child, children);
        }
        set.sort();
        let member = member || set.is_empty();
        Ok((set, member))
    }

    /// Reads the text of a `FieldsV1`, as [`Set::parse`] does a tree.
    ///
    /// # Errors
    /// As [`Set::parse`].
    pub fn parse_text(fields: &'a [u8]) -> Result<Self, BadElement> {
        let read = Self::parse_text_level(&mut Walk::new(fields));
        Ok(read.ok_or_else(|| BadElement::of(String::from_utf8_lossy(fields).into_owned()))?.0)
    }

    fn parse_text_level(walk: &mut Walk<'a>) -> Option<(Self, bool)> {
        let (mut set, mut member) = (Set::new(), false);
        walk.object(|walk, key| {
            if key == "." {
                member = true;
                return walk.raw().map(drop);
            }
            let element = match key {
                Cow::Borrowed(key) => Element::parse(key).ok()?,
                Cow::Owned(key) => Element::parse(&key).ok()?.map(Element::into_owned),
            };
            let Some(element) = element else { return walk.raw().map(drop) };
            let (children, child) = Self::parse_text_level(walk)?;
            set.push(element, child, children);
            Some(())
        })?;
        set.sort();
        let member = member || set.is_empty();
        Some((set, member))
    }

    /// Appends the set as the text of a `FieldsV1`.
    pub fn write(&self, out: &mut Vec<u8>) {
        self.write_level(false, out);
    }

    fn write_level(&self, member: bool, out: &mut Vec<u8>) {
        out.push(b'{');
        if member && !self.nodes.is_empty() {
            out.extend_from_slice(b"\".\":{},");
        }
        for (at, node) in self.nodes.iter().enumerate() {
            if at > 0 {
                out.push(b',');
            }
            node.element.write(out);
            out.push(b':');
            node.children.write_level(node.member, out);
        }
        out.push(b'}');
    }

    /// Whether some path is in this set and in the text of a `FieldsV1` in normal form.
    pub fn overlaps_text(&self, fields: &[u8]) -> bool {
        let mut both = false;
        if !self.is_empty() {
            // Broken text has no more paths.
            let _ = self.overlaps_level(&mut Walk::new(fields), &mut both);
        }
        both
    }

    /// Sets `both`, and ends the walk, at the first path that is in both; whether the level's own path is in the text.
    fn overlaps_level(&self, walk: &mut Walk<'_>, both: &mut bool) -> Option<bool> {
        let (mut empty, mut member, mut next) = (true, false, 0);
        walk.object(|walk, key| {
            empty = false;
            member |= key == ".";
            let Some(at) = self.position(&key, next) else { return walk.raw().map(drop) };
            let node = &self.nodes[at];
            next = at + 1;
            let is_member = node.children.overlaps_level(walk, both)?;
            *both = node.member && is_member;
            if *both { None } else { Some(()) }
        })?;
        Some(empty || member)
    }

    /// Whether every path of this set is in the text of a `FieldsV1` in normal form.
    pub fn is_in_text(&self, fields: &[u8]) -> bool {
        self.is_empty() || self.inside_level(&mut Walk::new(fields)).is_some()
    }

    /// None, and the end of the walk, where a path is missing; else whether the level's own path is in the text.
    fn inside_level(&self, walk: &mut Walk<'_>) -> Option<bool> {
        let (mut empty, mut member, mut next) = (true, false, 0);
        walk.object(|walk, key| {
            empty = false;
            member |= key == ".";
            let Some(at) = self.position(&key, next) else { return walk.raw().map(drop) };
            // Both are in order: what is not met in its turn is not there.
            let node = self.nodes.get(at).filter(|_| at == next)?;
            next = at + 1;
            let is_member = node.children.inside_level(walk)?;
            if is_member || !node.member { Some(()) } else { None }
        })?;
        if next == self.nodes.len() { Some(empty || member) } else { None }
    }

    /// Which node's element has a text; `next` is a guess.
    fn position(&self, text: &str, next: usize) -> Option<usize> {
        let last = self.nodes.last()?;
        let search = |element: &Element<'_>| self.nodes.binary_search_by(|n| n.element.cmp(element)).ok();
        if let Some(name) = text.strip_prefix("f:") {
            return search(&Element::name(name));
        }
        if matches!(last.element, Element::Name(_)) {
            return None;
        }
        match self.nodes.get(next) {
            Some(node) if node.element.is(text) => Some(next),
            _ => search(&Element::parse(text).ok()??),
        }
    }

    /// The set as a `FieldsV1` tree.
    pub fn to_fields(&self) -> Value {
        Value::Object(self.level())
    }

    fn level(&self) -> Map<String, Value> {
        let mut map = Map::new();
        for node in &self.nodes {
            let mut below = node.children.level();
            if node.member && !below.is_empty() {
                below.insert(".".into(), Value::Object(Map::new()));
            }
            map.insert(node.element.text().into(), Value::Object(below));
        }
        map
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn set(fields: &Value) -> Set<'_> {
        Set::parse(fields).expect("a field set")
    }

    #[test]
    fn what_is_taken_from_a_set_in_place_is_what_is_taken_from_a_copy() {
        let trees = [
            json!({}),
            json!({"f:a": {".": {}, "f:b": {}, "f:c": {}}, "f:d": {}}),
            json!({"f:a": {"f:b": {}}, "f:e": {}}),
            json!({"f:a": {}, "f:d": {"f:x": {}}}),
            json!({"f:0": {}, "f:a": {"f:b": {"k:{\"n\":1}": {}}, "f:c": {}}, "f:d": {}, "f:z": {}}),
        ];
        for (a, b) in trees.iter().flat_map(|a| trees.iter().map(move |b| (a, b))) {
            let (mine, theirs) = (set(a), set(b));
            assert_eq!(mine.clone().minus(&theirs), mine.difference(&theirs), "{a} {b}");
            let rest = mine.clone().without(&theirs);
            assert!(rest.intersection(&theirs).is_empty(), "{a} {b}");
        }
        let all = set(&trees[1]).without(&set(&trees[3]));
        assert_eq!(all.paths(), [".d"], "what is below a path goes with it");
    }

    #[test]
    fn the_dot_marks_a_member_that_has_members_below() {
        let fields = json!({"f:a": {".": {}, "f:b": {}}, "f:c": {"f:d": {}}});
        let parsed = set(&fields);
        assert!(parsed.contains(&[Element::name("a")]));
        assert!(!parsed.contains(&[Element::name("c")]));
        assert!(parsed.contains(&[Element::name("c"), Element::name("d")]));
        assert_eq!(parsed.to_fields(), fields);
        assert_eq!(parsed.paths(), [".a", ".a.b", ".c.d"]);
    }

    #[test]
    fn difference_keeps_what_is_below_and_without_does_not() {
        let (all, some) = (json!({"f:a": {".": {}, "f:b": {}}, "f:c": {}}), json!({"f:a": {}}));
        assert_eq!(set(&all).difference(&set(&some)).to_fields(), json!({"f:a": {"f:b": {}}, "f:c": {}}));
        assert_eq!(set(&all).without(&set(&some)).to_fields(), json!({"f:c": {}}));
        assert_eq!(set(&some).difference(&set(&all)).to_fields(), json!({}));
    }

    #[test]
    fn union_and_intersection_meet_at_members_only() {
        let (a, b) = (json!({"f:a": {"f:b": {}}, "f:x": {}}), json!({"f:a": {}, "f:x": {"f:y": {}}}));
        assert_eq!(
            set(&a).union(&set(&b)).to_fields(),
            json!({
            "f:a": {".": {}, "f:b": {}}, "f:x": {".": {}, "f:y": {}}})
        );
        assert!(set(&a).intersection(&set(&b)).is_empty());
        assert!(!set(&a).overlaps(&set(&b)));
        let both = json!({"f:a": {"f:b": {}, "f:c": {}}});
        assert_eq!(set(&a).intersection(&set(&both)).to_fields(), json!({"f:a": {"f:b": {}}}));
        assert!(set(&a).overlaps(&set(&both)));
        assert!(set(&a).overlaps_fields(&both) && !set(&a).overlaps_fields(&b));
    }

    #[test]
    fn texts_say_what_trees_say() {
        let fields = json!({"f:a": {".": {}, "f:b": {}}, "f:c": {"k:{\"port\":443}": {}, "k:{\"port\":80}": {".": {}, "f:x": {}}},
            "f:d": {"v:\"a\"": {}}});
        let mut text = Vec::new();
        proto::json::write_fields(&fields, &mut text);
        let read = Set::parse_text(&text).expect("a field set");
        assert_eq!(read, set(&fields));
        let mut again = Vec::new();
        read.write(&mut again);
        assert_eq!(String::from_utf8_lossy(&again), String::from_utf8_lossy(&text));
        assert!(read.is_in_text(&text) && read.overlaps_text(&text));
        for (some, inside, overlaps) in [
            (json!({"f:c": {"k:{\"port\":80}": {"f:x": {}}}}), true, true),
            (json!({"f:a": {}, "f:z": {}}), false, true),
            (json!({"f:c": {}}), false, false),
            (json!({}), true, false),
        ] {
            assert_eq!((set(&some).is_in_text(&text), set(&some).overlaps_text(&text)), (inside, overlaps), "{some}");
        }
        assert!(Set::parse_text(b"{\"nonsense\":{}}").is_err() && Set::parse_text(b"[]").is_err());
    }

    #[test]
    fn long_texts_say_what_trees_say_and_are_not_looked_through_for_each_path() {
        let many = |from: usize, to: usize| {
            let names = (from..to).map(|n| (format!("f:key\"{n}"), json!({})));
            let values = (from..to).map(|n| (format!("v:\"{n}\""), json!({})));
            json!({"f:data": Value::Object(names.collect()), "f:finalizers": Value::Object(values.collect())})
        };
        let all = many(0, 20_000);
        let mut text = Vec::new();
        proto::json::write_fields(&all, &mut text);
        for (some, inside, overlaps) in [
            (many(0, 20_000), true, true),
            (many(5_000, 19_999), true, true),
            (many(1, 20_001), false, true),
            (many(20_000, 40_000), false, false),
        ] {
            let some = set(&some);
            assert_eq!(some.is_in_text(&text), inside);
            assert_eq!(some.difference(&set(&all)).is_empty(), inside, "as the trees have it");
            assert_eq!(some.overlaps_text(&text), overlaps);
            assert_eq!(some.overlaps_fields(&all), overlaps, "as the trees have it");
        }
    }

    #[test]
    fn elements_of_a_later_version_are_left_out_and_nonsense_is_refused() {
        assert!(set(&json!({"z:new": {}})).is_empty());
        assert!(Set::parse(&json!({"nonsense": {}})).is_err());
        assert!(Set::parse(&json!({"f:a": 1})).is_err());
        assert!(Set::parse(&json!([])).is_err());
    }
}
