//! The object of a request in the forms that policies and webhooks see it in.
//!
//! Making a form means to write and read the whole object. It is made when somebody first looks at it, and once for all
//! who do: every policy, with every binding and state of its parameters, and every webhook.

use std::borrow::Cow;
use std::sync::OnceLock;

use serde_json::Value;

use super::attributes::Attributes;
use crate::resource::Resource;

/// The forms of one object, one for each version that was asked for.
#[derive(Debug, Default)]
pub struct Forms(OnceLock<Box<Form>>);

#[derive(Debug)]
struct Form {
    group: Box<str>,
    version: Box<str>,
    /// None where it is the object as it is.
    made: Option<Value>,
    others: Forms,
}

impl Forms {
    /// An object in a version; `make` is asked only once for each, always with the same object.
    pub fn of<'v>(
        &'v self,
        value: &'v Value,
        (group, version): (&str, &str),
        make: impl Fn(&'v Value) -> Cow<'v, Value>,
    ) -> &'v Value {
        let mut place = self;
        loop {
            let form = place.0.get_or_init(|| {
                let made = match make(value) {
                    Cow::Borrowed(_) => None,
                    Cow::Owned(made) => Some(made),
                };
                Box::new(Form { group: group.into(), version: version.into(), made, others: Forms::default() })
            });
            if *form.group == *group && *form.version == *version {
                return form.made.as_ref().unwrap_or(value);
            }
            place = &form.others;
        }
    }
}

/// The new object of a request, while policies and webhooks look at it or change it.
#[derive(Debug, Default)]
pub struct Subject<'o> {
    value: Option<Cow<'o, Value>>,
    forms: Forms,
}

impl<'o> Subject<'o> {
    /// An object that is only looked at.
    pub fn seen(value: Option<&'o Value>) -> Self {
        Subject { value: value.map(Cow::Borrowed), forms: Forms::default() }
    }

    /// An object that may be changed.
    pub fn owned(value: Option<Value>) -> Self {
        Subject { value: value.map(Cow::Owned), forms: Forms::default() }
    }

    /// As it is stored.
    pub fn value(&self) -> Option<&Value> {
        self.value.as_deref()
    }

    /// Spelled out in the version of a resource.
    pub fn shown(&self, attributes: &Attributes<'_>, to: &Resource) -> Option<&Value> {
        let version = (&*to.group, &*to.version);
        Some(self.forms.of(self.value()?, version, |value| attributes.spelled_out(value, to)))
    }

    /// Replaces the object, and tells whether it differs; who looks at it from now on sees the new one.
    pub fn set(&mut self, value: Value) -> bool {
        let differs = self.value() != Some(&value);
        if differs {
            *self = Subject::owned(Some(value));
        }
        differs
    }

    pub fn into_value(self) -> Option<Value> {
        self.value.map(Cow::into_owned)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use serde_json::json;

    use super::*;

    /// What one form shows, and how often it was made.
    fn looks(subject: &Subject<'_>, made: &Cell<u32>, version: &str) -> Value {
        let value = subject.value().expect("an object");
        let make = |value: &Value| {
            made.set(made.get() + 1);
            Cow::Owned(json!([version, value]))
        };
        subject.forms.of(value, ("g", version), make).clone()
    }

    #[test]
    fn a_form_is_made_once_for_every_version() {
        let subject = Subject::owned(Some(json!(1)));
        let made = Cell::new(0);
        for version in ["v1", "v2", "v1", "v3", "v2", "v1"] {
            assert_eq!(looks(&subject, &made, version), json!([version, 1]));
        }
        assert_eq!(made.get(), 3);
    }

    #[test]
    fn whoever_looks_after_a_change_sees_it() {
        let mut subject = Subject::owned(Some(json!(1)));
        let made = Cell::new(0);
        looks(&subject, &made, "v1");
        assert!(!subject.set(json!(1)), "the same");
        assert_eq!((looks(&subject, &made, "v1"), made.get()), (json!(["v1", 1]), 1));
        assert!(subject.set(json!(2)));
        assert_eq!((looks(&subject, &made, "v1"), made.get()), (json!(["v1", 2]), 2));
        assert_eq!(subject.into_value(), Some(json!(2)));
    }

    #[test]
    fn what_needs_no_other_form_is_not_copied() {
        let object = json!({"a": 1});
        let forms = Forms::default();
        assert!(std::ptr::eq(forms.of(&object, ("", "v1"), Cow::Borrowed), &object));
        let subject = Subject::seen(Some(&object));
        assert!(subject.value().is_some_and(|value| std::ptr::eq(value, &object)));
    }
}
