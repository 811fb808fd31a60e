//! `metadata.managedFields`: who set which fields, when, and in which version.

use std::borrow::Cow;

use proto::json::{self, Walk};
use proto::time::parse_rfc3339;
use serde_json::{Map, Value};

use super::set::Set;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Operation {
    Apply,
    Update,
}

/// Fields that one manager owns. Managers differ by name, operation and subresource, those of updates also by version.
#[derive(Debug, Clone)]
pub struct Entry<'a> {
    pub manager: Cow<'a, str>,
    pub operation: Operation,
    pub api_version: Cow<'a, str>,
    pub subresource: Cow<'a, str>,
    /// RFC 3339 in whole seconds.
    pub time: Option<Cow<'a, str>>,
    fields: Fields<'a>,
}

/// What an entry owns. Most writes touch the fields of few owners, so the others stay as they were read.
#[derive(Debug, Clone)]
enum Fields<'a> {
    Unread(&'a Value),
    /// The same where the list was never a tree; in normal form.
    Text(&'a [u8]),
    Set(Set<'a>),
}

#[derive(Debug, Clone, Default)]
pub struct Entries<'a>(pub Vec<Entry<'a>>);

/// Managed fields that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("managed fields entry {0} is not valid")]
pub struct Unreadable(usize);

/// Entries of updates that an object keeps; older ones are merged.
const MAX_UPDATES: usize = 10;
/// Who owns what the oldest updates set.
const ANCIENT: &str = "ancient-changes";

impl<'a> Entry<'a> {
    pub fn same_manager(&self, other: &Entry<'_>) -> bool {
        self.manager == other.manager
            && self.operation == other.operation
            && self.subresource == other.subresource
            && (self.operation == Operation::Apply || self.api_version == other.api_version)
    }

    /// An entry that owns nothing yet.
    pub fn new(manager: &'a str, operation: Operation, api_version: String, subresource: &'a str) -> Self {
        Entry {
            manager: manager.into(),
            operation,
            api_version: api_version.into(),
            subresource: subresource.into(),
            time: None,
            fields: Fields::Set(Set::new()),
        }
    }

    pub fn set(&self) -> Cow<'_, Set<'a>> {
        match &self.fields {
            Fields::Set(set) => Cow::Borrowed(set),
            // What is stored was checked before; an entry that cannot be read all the same owns nothing.
            Fields::Unread(fields) => Cow::Owned(Set::parse(fields).unwrap_or_default()),
            Fields::Text(fields) => Cow::Owned(Set::parse_text(fields).unwrap_or_default()),
        }
    }

    pub fn set_fields(&mut self, set: Set<'a>) {
        self.fields = Fields::Set(set);
    }

    /// Sets what the entry owns to a text in normal form.
    pub fn set_text(&mut self, fields: &'a [u8]) {
        self.fields = Fields::Text(fields);
    }

    pub fn is_empty(&self) -> bool {
        match &self.fields {
            Fields::Set(set) => set.is_empty(),
            Fields::Unread(fields) => fields.as_object().is_none_or(Map::is_empty),
            Fields::Text(fields) => *fields == b"{}",
        }
    }

    /// Whether the entry owns some path of a set.
    pub fn owns_some(&self, paths: &Set<'_>) -> bool {
        match &self.fields {
            Fields::Set(set) => set.overlaps(paths),
            Fields::Unread(fields) => paths.overlaps_fields(fields),
            Fields::Text(fields) => paths.overlaps_text(fields),
        }
    }

    /// Whether the entry, in text, owns the same after it took some paths and lost others as before.
    pub fn stays(&self, taken: &Set<'_>, lost: &Set<'_>) -> bool {
        matches!(self.fields, Fields::Text(fields) if taken.is_in_text(fields) && !lost.overlaps_text(fields))
    }

    /// Text by which upstream tells managers apart; it orders conflicts.
    pub fn identity(&self) -> String {
        let mut out = Vec::from(&b"{"[..]);
        let version = if self.operation == Operation::Apply { "" } else { &self.api_version };
        let parts = [
            ("manager", &*self.manager),
            ("operation", self.operation.name()),
            ("apiVersion", version),
            ("subresource", &self.subresource),
        ];
        for (name, value) in parts.into_iter().filter(|p| !p.1.is_empty()) {
            proto::json::write_string(name, &mut out);
            proto::json::write_string(value, &mut out);
        }
        String::from_utf8(out).unwrap_or_default()
    }

    fn read(value: &'a Value) -> Option<Self> {
        let map = value.as_object()?;
        let text = |key: &str| map.get(key).and_then(Value::as_str).unwrap_or_default();
        let operation = match text("operation") {
            "Apply" => Operation::Apply,
            "Update" => Operation::Update,
            _ => return None,
        };
        if text("apiVersion").is_empty() || text("fieldsType") != "FieldsV1" {
            return None;
        }
        let fields = map.get("fieldsV1").filter(|f| f.is_object());
        let time = map.get("time").and_then(Value::as_str);
        Some(Entry {
            manager: text("manager").into(),
            operation,
            api_version: text("apiVersion").into(),
            subresource: text("subresource").into(),
            time: time.filter(|t| parse_rfc3339(t).is_ok()).map(Cow::Borrowed),
            fields: fields.map_or(Fields::Set(Set::new()), Fields::Unread),
        })
    }

    /// Reads an entry of a stored list.
    fn read_text(walk: &mut Walk<'a>) -> Option<Self> {
        let empty = Cow::Borrowed("");
        let (mut manager, mut api_version, mut subresource) = (empty.clone(), empty.clone(), empty);
        let (mut operation, mut time, mut fields) = (None, None, &b"{}"[..]);
        walk.object(|walk, key| {
            match &*key {
                "manager" => manager = walk.string()?,
                "operation" => {
                    let said = walk.string()?;
                    operation = [Operation::Apply, Operation::Update].into_iter().find(|o| o.name() == said);
                }
                "apiVersion" => api_version = walk.string()?,
                "time" => time = Some(walk.string()?),
                "fieldsV1" => fields = Some(walk.raw()?).filter(|text| text.first() == Some(&b'{')).unwrap_or(fields),
                "subresource" => subresource = walk.string()?,
                _ => drop(walk.raw()?),
            }
            Some(())
        })?;
        Some(Entry {
            manager,
            operation: operation?,
            api_version: Some(api_version).filter(|version| !version.is_empty())?,
            subresource,
            time,
            fields: Fields::Text(fields),
        })
    }

    /// Appends the entry as a list at rest has it.
    fn write(&self, out: &mut Vec<u8>) {
        out.push(b'{');
        let mut put = |key: &str, text: &str| {
            if !text.is_empty() {
                json::write_string(key, out);
                out.push(b':');
                json::write_string(text, out);
                out.push(b',');
            }
        };
        put("manager", &self.manager);
        put("operation", self.operation.name());
        put("apiVersion", &self.api_version);
        put("time", self.time.as_deref().unwrap_or_default());
        put("fieldsType", "FieldsV1");
        out.extend_from_slice(b"\"fieldsV1\":");
        self.write_fields(out);
        if !self.subresource.is_empty() {
            out.extend_from_slice(b",\"subresource\":");
            json::write_string(&self.subresource, out);
        }
        out.push(b'}');
    }

    fn write_fields(&self, out: &mut Vec<u8>) {
        match &self.fields {
            Fields::Set(set) => set.write(out),
            Fields::Unread(fields) => json::write_fields(fields, out),
            Fields::Text(fields) => out.extend_from_slice(fields),
        }
    }

    /// Whether two entries say the same of the same manager, whatever their times.
    fn same_but_time(&self, other: &Entry<'_>) -> bool {
        let text = |entry: &Entry<'_>| {
            let mut out = Vec::new();
            entry.write_fields(&mut out);
            out
        };
        self.manager == other.manager
            && self.operation == other.operation
            && self.api_version == other.api_version
            && self.subresource == other.subresource
            && match (&self.fields, &other.fields) {
                (Fields::Text(a), Fields::Text(b)) => a == b,
                _ => text(self) == text(other),
            }
    }

    fn to_value(&self) -> Value {
        let mut map = Map::new();
        let mut put = |key: &str, text: &str| {
            if !text.is_empty() {
                map.insert(key.into(), text.into());
            }
        };
        put("manager", &self.manager);
        put("operation", self.operation.name());
        put("apiVersion", &self.api_version);
        put("time", self.time.as_deref().unwrap_or_default());
        put("fieldsType", "FieldsV1");
        put("subresource", &self.subresource);
        let fields = match &self.fields {
            Fields::Set(set) => set.to_fields(),
            Fields::Unread(fields) => (*fields).clone(),
            Fields::Text(_) => self.set().to_fields(),
        };
        map.insert("fieldsV1".into(), fields);
        Value::Object(map)
    }
}

impl Operation {
    pub const fn name(self) -> &'static str {
        match self {
            Operation::Apply => "Apply",
            Operation::Update => "Update",
        }
    }
}

impl<'a> Entries<'a> {
    /// Reads a list that a client sent; null and absent are an empty one.
    ///
    /// # Errors
    /// An entry without operation, version or readable fields.
    pub fn read(fields: &'a Value) -> Result<Self, Unreadable> {
        let mut entries = Entries::stored(fields)?;
        for (at, entry) in entries.0.iter_mut().enumerate() {
            // Written again in normal form.
            if let Fields::Unread(fields) = entry.fields {
                entry.set_fields(Set::parse(fields).map_err(|_| Unreadable(at))?);
            }
        }
        Ok(entries)
    }

    /// Reads the list of a stored object, whose fields are in normal form.
    ///
    /// # Errors
    /// An entry without operation or version.
    pub fn stored(fields: &'a Value) -> Result<Self, Unreadable> {
        let mut entries = Entries::default();
        for (at, value) in fields.as_array().into_iter().flatten().enumerate() {
            let entry = Entry::read(value).ok_or(Unreadable(at))?;
            match entries.find(&entry) {
                Some(same) => entries.0[same] = entry,
                None => entries.0.push(entry),
            }
        }
        Ok(entries)
    }

    /// Reads the list of a stored object where it is text; an empty text is an empty list.
    ///
    /// # Errors
    /// As [`Entries::stored`].
    pub fn stored_text(list: &'a [u8]) -> Result<Self, Unreadable> {
        if list.is_empty() {
            return Ok(Entries::default());
        }
        let mut entries = Vec::new();
        let walked = Walk::new(list).list(|walk| Entry::read_text(walk).map(|entry| entries.push(entry)));
        match walked {
            Some(()) => Ok(Entries(entries)),
            None => Err(Unreadable(entries.len())),
        }
    }

    /// Whether two lists differ in nothing but times. Both in the order of [`Entries::sort`].
    pub fn same_but_times(&self, other: &Entries<'_>) -> bool {
        self.0.len() == other.0.len() && self.0.iter().zip(&other.0).all(|(a, b)| a.same_but_time(b))
    }

    /// Whether two lists are the same in all. Both in the order of [`Entries::sort`].
    pub fn same(&self, other: &Entries<'_>) -> bool {
        self.same_but_times(other) && self.0.iter().zip(&other.0).all(|(a, b)| a.time == b.time)
    }

    /// Puts the list in the order that objects have it in.
    pub fn sort(&mut self) {
        self.0.sort_by(|a, b| a.order().cmp(&b.order()));
    }

    /// Appends the list as an object at rest has it.
    pub fn write(&self, out: &mut Vec<u8>) {
        out.push(b'[');
        for (at, entry) in self.0.iter().enumerate() {
            if at > 0 {
                out.push(b',');
            }
            entry.write(out);
        }
        out.push(b']');
    }

    /// Position of the entry of the same manager.
    pub fn find(&self, like: &Entry<'_>) -> Option<usize> {
        self.0.iter().position(|e| e.same_manager(like))
    }

    /// The list as the object holds it; None when nobody owns anything.
    pub fn to_value(&self) -> Option<Value> {
        let mut entries: Vec<&Entry<'_>> = self.0.iter().collect();
        entries.sort_by(|a, b| a.order().cmp(&b.order()));
        (!entries.is_empty()).then(|| entries.into_iter().map(Entry::to_value).collect())
    }

    /// Merges the oldest updates of each version while there are too many.
    pub fn cap(&mut self) {
        let count = |entries: &[Entry<'_>]| entries.iter().filter(|e| e.operation == Operation::Update).count();
        if count(&self.0) <= MAX_UPDATES {
            return;
        }
        let mut updates: Vec<Entry<'a>> = Vec::new();
        self.0.retain(|e| {
            let update = e.operation == Operation::Update;
            if update {
                updates.push(e.clone());
            }
            !update
        });
        updates.sort_by_cached_key(|e| (e.time.clone(), e.identity()));
        let mut left = updates.len();
        // The first of a version waits until a second one comes; then both become the bucket of that version.
        let mut first: Vec<Entry<'a>> = Vec::new();
        let mut buckets: Vec<Entry<'a>> = Vec::new();
        for entry in updates {
            if left <= MAX_UPDATES {
                self.0.push(entry);
                continue;
            }
            let version = |e: &Entry<'_>| e.api_version == entry.api_version;
            if let Some(bucket) = buckets.iter_mut().find(|b| version(b)) {
                bucket.set_fields(bucket.set().union(&entry.set()));
                bucket.time.clone_from(&entry.time);
            } else if let Some(at) = first.iter().position(version) {
                let mut bucket = first.swap_remove(at);
                bucket.set_fields(bucket.set().union(&entry.set()));
                bucket.manager = ANCIENT.into();
                bucket.subresource = Cow::Borrowed("");
                bucket.time.clone_from(&entry.time);
                buckets.push(bucket);
            } else {
                first.push(entry);
                continue;
            }
            left -= 1;
        }
        self.0.append(&mut first);
        for bucket in buckets {
            match self.find(&bucket) {
                Some(at) => {
                    let all = self.0[at].set().union(&bucket.set());
                    self.0[at].set_fields(all);
                }
                None => self.0.push(bucket),
            }
        }
    }
}

impl Entry<'_> {
    fn order(&self) -> (Operation, Option<&str>, &str, &str, &str) {
        (self.operation, self.time.as_deref(), &self.manager, &self.api_version, &self.subresource)
    }
}

/// Whether a client asks to forget all owners: an empty list, or one with an empty entry.
pub fn is_reset(fields: &Value) -> bool {
    match fields.as_array().map(Vec::as_slice) {
        Some([]) => true,
        Some([only]) => only.as_object().is_some_and(|e| e.values().all(|v| v.is_null() || v == "")),
        _ => false,
    }
}

/// Whether two lists differ in nothing but times.
pub fn same_but_times(a: &Value, b: &Value) -> bool {
    let (Some(a), Some(b)) = (a.as_array(), b.as_array()) else { return false };
    let same = |a: &Value, b: &Value| {
        let keys = ["manager", "operation", "apiVersion", "fieldsType", "subresource", "fieldsV1"];
        keys.iter().all(|key| a[key] == b[key])
    };
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn entry(manager: &str, time: &str, field: &str) -> Value {
        json!({"manager": manager, "operation": "Update", "apiVersion": "v1", "time": time, "fieldsType": "FieldsV1",
            "fieldsV1": {format!("f:{field}"): {}}})
    }

    #[test]
    fn applied_entries_come_first_then_the_older_ones() {
        let mut applied = entry("z", "2026-01-01T00:00:09Z", "a");
        applied["operation"] = "Apply".into();
        let list = json!([
            entry("b", "2026-01-01T00:00:02Z", "b"),
            entry("a", "2026-01-01T00:00:02Z", "c"),
            entry("c", "2026-01-01T00:00:01Z", "d"),
            applied
        ]);
        let written = Entries::read(&list).expect("valid").to_value().expect("some");
        let names: Vec<_> = written.as_array().into_iter().flatten().map(|e| &e["manager"]).collect();
        assert_eq!(names, ["z", "c", "a", "b"]);
    }

    #[test]
    fn the_oldest_of_many_updates_are_merged() {
        let list: Vec<Value> = (0..13)
            .map(|i| entry(&format!("m{i:02}"), &format!("2026-01-01T00:00:{i:02}Z"), &format!("f{i}")))
            .collect();
        let list = Value::Array(list);
        let mut entries = Entries::read(&list).expect("valid");
        entries.cap();
        let written = entries.to_value().expect("some");
        let all = written.as_array().expect("a list");
        assert_eq!(all.len(), 10);
        assert_eq!(all[0]["manager"], "ancient-changes");
        assert_eq!(all[0]["fieldsV1"], json!({"f:f0": {}, "f:f1": {}, "f:f2": {}, "f:f3": {}}));
        assert_eq!(all[0]["time"], "2026-01-01T00:00:03Z");
        assert_eq!(all[1]["manager"], "m04");
    }

    #[test]
    fn what_cannot_be_read_is_refused_and_empty_entries_ask_for_a_reset() {
        for bad in [json!([{"operation": "Update"}]), json!([{"operation": "x", "apiVersion": "v1"}])] {
            assert!(Entries::read(&bad).is_err());
        }
        assert!(is_reset(&json!([])) && is_reset(&json!([{}])));
        assert!(!is_reset(&Value::Null) && !is_reset(&json!([entry("a", "", "b")])));
    }

    #[test]
    fn lists_as_text_are_what_lists_as_trees_are() {
        let mut applied = entry("z\"", "2026-01-01T00:00:09Z", "a");
        applied["operation"] = "Apply".into();
        applied["subresource"] = "status".into();
        let list = json!([applied, entry("b", "2026-01-01T00:00:02Z", "b"), entry("c", "", "c")]);
        let mut tree = Entries::read(&list).expect("valid");
        tree.sort();
        let mut text = Vec::new();
        tree.write(&mut text);
        // As the schema writes it.
        let set = proto::schema::TypeSet::built_in();
        let id = set.struct_named("k8s.io.apimachinery.pkg.apis.meta.v1.ObjectMeta").expect("built in");
        let mut whole = Vec::new();
        proto::json::write(set, id, &json!({"managedFields": tree.to_value()}), &mut whole);
        let wanted = format!("\"managedFields\":{}", String::from_utf8_lossy(&text));
        assert!(String::from_utf8_lossy(&whole).contains(&wanted), "{wanted}");

        let read = Entries::stored_text(&text).expect("valid");
        assert!(read.same(&tree) && read.0[0].set() == tree.0[0].set());
        assert_eq!(read.to_value(), tree.to_value());
        let mut later = read.clone();
        later.0[1].time = Some("2026-01-01T00:00:03Z".into());
        assert!(later.same_but_times(&read) && !later.same(&read));
        later.0[1].manager = "d".into();
        assert!(!later.same_but_times(&read));
        assert!(Entries::stored_text(b"").is_ok_and(|e| e.0.is_empty()) && Entries::stored_text(b"[{}]").is_err());
    }
}
