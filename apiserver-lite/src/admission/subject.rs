//! The object of a request in the forms that policies and webhooks see it in.
//!
//! Making a form means to write and read the whole object. It is made when somebody first looks at it, and once for all
//! who do: every policy, with every binding and state of its parameters, and every webhook.

use std::borrow::Cow;
use std::sync::OnceLock;

use serde_json::Value;

use super::attributes::Attributes;
use crate::resource::Resource;
use crate::status::Result;

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
    /// An object in a version; `make` is asked only once for each that can be made, always with the same object.
    ///
    /// # Errors
    /// What `make` says.
    pub fn of<'v>(
        &'v self,
        value: &'v Value,
        (group, version): (&str, &str),
        make: impl Fn(&'v Value) -> Result<Cow<'v, Value>>,
    ) -> Result<&'v Value> {
        let mut place = self;
        loop {
            let form = match place.0.get() {
                Some(form) => form,
                None => {
                    let made = match make(value)? {
                        Cow::Borrowed(_) => None,
                        Cow::Owned(made) => Some(made),
                    };
                    let (group, version) = (group.into(), version.into());
                    place.0.get_or_init(|| Box::new(Form { group, version, made, others: Forms::default() }))
                }
            };
            if *form.group == *group && *form.version == *version {
                return Ok(form.made.as_ref().unwrap_or(value));
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
    ///
    /// # Errors
    /// As [`Attributes::versioned`].
    pub fn shown(&self, attributes: &Attributes<'_>, to: &Resource) -> Result<Option<&Value>> {
        let Some(value) = self.value() else { return Ok(None) };
        let version = (&*to.group, &*to.version);
        self.forms.of(value, version, |value| attributes.spelled_out(value, to)).map(Some)
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
            Ok(Cow::Owned(json!([version, value])))
        };
        subject.forms.of(value, ("g", version), make).expect("it is made").clone()
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
    fn a_form_that_cannot_be_made_is_tried_again() {
        let object = json!(1);
        let forms = Forms::default();
        let fails = |_| Err(crate::status::ApiError::internal("nobody answers"));
        assert!(forms.of(&object, ("g", "v2"), fails).is_err());
        let made = forms.of(&object, ("g", "v2"), |_| Ok(Cow::Owned(json!(2)))).expect("it is made");
        assert_eq!(*made, json!(2));
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
        let form = forms.of(&object, ("", "v1"), |value| Ok(Cow::Borrowed(value))).expect("it is the same");
        assert!(std::ptr::eq(form, &object));
        let subject = Subject::seen(Some(&object));
        assert!(subject.value().is_some_and(|value| std::ptr::eq(value, &object)));
    }
}
