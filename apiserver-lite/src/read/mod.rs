//! Reads: get, list and watch of any resource, straight from stored bytes.
//!
//! A list is the stored JSON of its objects with a head and a tail around it, put together while it is sent; a watch event is encoded once and shared
//! by every watcher. Trees are made only for tables and metadata forms.

mod chosen;
mod components;
mod form;
mod options;
mod selector;
mod shard;
mod table;
#[cfg(test)]
mod tests;
mod watch;
mod whole;

use serde_json::{Value, json};

pub use form::convert;
pub use options::{ListOptions, Match, Token, parse_version, reach, too_large};
pub use selector::{Selector, exact_name, field_requirements, label_requirements};
pub use table::since;
pub use watch::watch;

use crate::http::{Accepted, Form, Response, respond};
use crate::resource::{Resource, Verbs};
use crate::server::{ApiServer, Request, wrong_method};
use crate::status::{ApiError, Result};
use crate::store::{Key, ObjectRef, Snapshot, Store};

/// One object by name.
///
/// # Errors
/// 404, 504 for a version of the future, 406.
pub async fn get(server: &ApiServer, request: &Request, resource: &Resource) -> Result<Response> {
    if !resource.verbs.contains(Verbs::GET) {
        return Err(wrong_method());
    }
    let accepted = request.accepted(true)?;
    let info = &request.info;
    let namespace = if resource.namespaced { info.namespace.as_str() } else { "" };
    if let Some(version) = parse_version(request.query.get("resourceVersion").unwrap_or_default(), true)? {
        reach(&server.store, version).await?;
    }
    let asked = components::is_asked(resource);
    let found = match asked {
        true => components::get(server, resource, &info.name).await,
        false => server.store.get(&resource.storage, namespace, &info.name),
    };
    let Some(object) = found else {
        // The kind that is not stored names itself in the singular, and takes any name.
        return Err(match asked {
            true => ApiError::not_found(&resource.group, &resource.singular, &info.name),
            false => ApiError::missing(&resource.group, &resource.plural, &info.name),
        });
    };
    object_response(server, 200, accepted, resource, &object, request).await
}

/// A stored object in the accepted form and the resource's version.
///
/// # Errors
/// 406 for a form that one object does not have, 500 where a webhook cannot convert it.
pub async fn object_response(
    server: &ApiServer,
    code: u16,
    accepted: Accepted,
    resource: &Resource,
    object: &ObjectRef,
    request: &Request,
) -> Result<Response> {
    let object = &crate::crd::served_one(server, resource, object).await?;
    let mut response = in_form(code, accepted, resource, object, request)?;
    whole::gzip(server, request, &mut response);
    Ok(response)
}

fn in_form(
    code: u16,
    accepted: Accepted,
    resource: &Resource,
    object: &ObjectRef,
    request: &Request,
) -> Result<Response> {
    match accepted.form {
        Form::Whole if is_stored_form(resource, object) => Ok(respond::stored(code, accepted, resource, object)),
        Form::Whole => {
            let value = convert(resource, object.value());
            let schema = (!resource.custom).then_some(&resource.schema);
            Ok(respond::tree(code, accepted, schema, &value))
        }
        Form::Metadata => Ok(form::metadata_response(code, accepted, object)),
        Form::Table => {
            let rows = [object.clone()];
            table::response(code, accepted, resource, &rows, list_meta(object.revision), &request.query)
        }
        Form::MetadataList => Err(wrong_form(resource, "PartialObjectMetadataList", "not a list", "")),
    }
}

/// Metadata of a list at a revision; what is not stored has none.
fn list_meta(revision: u64) -> Value {
    if revision == 0 { json!({}) } else { json!({"resourceVersion": revision.to_string()}) }
}

/// Response with an object of a group, version and kind that is answered and not stored, such as a review. There is no
/// Table of one.
///
/// # Errors
/// 406 for a form that only lists have.
pub fn answered_response(code: u16, accepted: Accepted, schema: (&str, &str, &str), value: Value) -> Result<Response> {
    match accepted.form {
        Form::Whole | Form::Table => Ok(respond::built_in(code, accepted, schema, &value)),
        Form::Metadata => Ok(form::metadata_of_answer(code, accepted, value)),
        Form::MetadataList => {
            let (group, _, kind) = schema;
            let package = crate::resource::go_package(group);
            Err(wrong_form_of(&format!("*{package}.{kind}"), "PartialObjectMetadataList", "not a list", ""))
        }
    }
}

/// An object that is made of another one and not stored itself, in the accepted form.
///
/// # Errors
/// 406 for a form that only lists have.
pub fn value_response(
    accepted: Accepted,
    resource: &Resource,
    value: Value,
    query: &crate::request::Query,
) -> Result<Response> {
    match accepted.form {
        Form::Whole => Ok(respond::tree(200, accepted, Some(&resource.schema), &value)),
        Form::Metadata => Ok(form::metadata_of_answer(200, accepted, value)),
        Form::Table => table::of_value(accepted, resource, value, query),
        Form::MetadataList => Err(wrong_form(resource, "PartialObjectMetadataList", "not a list", "")),
    }
}

/// One object was asked for as a list, or the other way round.
fn wrong_form(resource: &Resource, form: &str, what: &str, suffix: &str) -> ApiError {
    wrong_form_of(&go_type(resource), form, what, suffix)
}

fn wrong_form_of(kind: &str, form: &str, what: &str, suffix: &str) -> ApiError {
    let text = format!("you requested {form}, but the requested object is {what} ({kind}{suffix})");
    ApiError::new(406, "NotAcceptable", text)
}

/// The name of a kind's internal type in upstream's program, which error texts show.
fn go_type(resource: &Resource) -> String {
    if resource.custom {
        return "*unstructured.Unstructured".into();
    }
    let package = crate::resource::go_package(&resource.group);
    format!("*{package}.{}", resource.kind)
}

/// Whether an object at rest is as this resource serves it.
fn is_stored_form(resource: &Resource, object: &ObjectRef) -> bool {
    match &resource.definition {
        Some(definition) => definition.is_current(object),
        None => resource.is_of(&resource.storage_version),
    }
}

/// A page: objects, whether more follow, and how many.
pub struct Page {
    /// Zero where nothing is stored.
    revision: u64,
    pub objects: Vec<ObjectRef>,
    next: Option<Token>,
    remaining: Option<usize>,
    /// The part of the collection that was asked for.
    shard: Option<String>,
}

/// A collection.
///
/// # Errors
/// 400 and 422 for options, 410 for versions and tokens that are too old, 504 for versions of the future.
pub async fn list(server: &ApiServer, request: &Request, resource: &Resource) -> Result<Response> {
    if !resource.verbs.contains(Verbs::LIST) {
        return Err(wrong_method());
    }
    let accepted = request.accepted(true)?;
    let query = &request.query;
    let options = ListOptions::parse(query, false)?;
    let field_selector = query.get("fieldSelector").unwrap_or_default();
    let selector = Selector::parse(resource, query.get("labelSelector").unwrap_or_default(), field_selector)?;
    let selector = selector.within(shard(server, query)?);
    let mut page = page_of(server, request, resource, &options, &selector).await?;
    page.shard = selector.shard_text();
    list_response(server, accepted, resource, page, request).await
}

/// The part of a collection that a request asks for; None for all of it, and where parts are not to be had.
///
/// # Errors
/// 500 for text that is no shard selector.
fn shard(server: &ApiServer, query: &crate::request::Query) -> Result<Option<shard::Shard>> {
    let asked = query.get("shardSelector").filter(|t| server.config.sharded && !t.is_empty());
    asked.map(shard::Shard::parse).transpose()
}

/// The page of a collection that a request is about.
///
/// # Errors
/// As [`list`].
pub async fn page_of(
    server: &ApiServer,
    request: &Request,
    resource: &Resource,
    options: &ListOptions,
    selector: &Selector,
) -> Result<Page> {
    if components::is_asked(resource) {
        let mut objects = components::list(server, resource).await;
        objects.retain(|object| selector.matches(object));
        return Ok(Page { revision: 0, objects, next: None, remaining: None, shard: None });
    }
    let namespace = Some(request.info.namespace.as_str()).filter(|n| resource.namespaced && !n.is_empty());
    if !selector.looks_inside() {
        return page(&server.store, resource, namespace, options, selector).await;
    }
    let source = source(&server.store, resource, namespace, options).await?;
    let taken = source.look_through(server, resource, namespace, selector).await?;
    Ok(source.page(namespace, selector, taken))
}

/// A page in the accepted form.
///
/// # Errors
/// 406 for a form that a list does not have, 500 where a webhook cannot convert its objects.
pub async fn list_response(
    server: &ApiServer,
    accepted: Accepted,
    resource: &Resource,
    page: Page,
    request: &Request,
) -> Result<Response> {
    let page = &Page { objects: crate::crd::served(server, resource, page.objects).await?, ..page };
    let mut metadata = list_meta(page.revision);
    if let Some(token) = &page.next {
        metadata["continue"] = token.encode().into();
        if let Some(remaining) = page.remaining {
            metadata["remainingItemCount"] = remaining.into();
        }
    }
    if let Some(shard) = &page.shard {
        metadata["shardInfo"] = json!({"selector": shard});
    }
    let mut response = match accepted.form {
        Form::Whole => whole::list(accepted, resource, page, &metadata).await,
        Form::Metadata => return Err(wrong_form(resource, "PartialObjectMetadata", "a list", "List")),
        Form::MetadataList => form::metadata_list(accepted, &page.objects, &metadata),
        Form::Table => table::response(200, accepted, resource, &page.objects, metadata, &request.query)?,
    };
    whole::gzip(server, request, &mut response);
    Ok(response)
}

/// Takes the objects of a list from the right snapshot, by what is kept with them.
///
/// # Errors
/// As [`list`].
async fn page(
    store: &Store,
    resource: &Resource,
    namespace: Option<&str>,
    options: &ListOptions,
    selector: &Selector,
) -> Result<Page> {
    let source = source(store, resource, namespace, options).await?;
    let taken = source.take(namespace, selector);
    Ok(source.page(namespace, selector, taken))
}

/// What a page is taken from.
struct Source {
    snapshot: Snapshot,
    /// The last key of the page before.
    after: Option<Key>,
    /// Zero for all.
    limit: usize,
}

/// Objects of a page, and the last one's key where more follow.
type Taken = (Vec<ObjectRef>, Option<Key>);

/// Objects that are looked into at once.
const LOOKED_AT: usize = 500;

impl Source {
    fn take(&self, namespace: Option<&str>, selector: &Selector) -> Taken {
        let mut objects = Vec::new();
        for object in self.snapshot.range(namespace, self.after.as_ref()) {
            if !selector.is_empty() && !selector.matches(object) {
                continue;
            }
            if self.is_full(&objects) {
                return next(objects);
            }
            objects.push(object.clone());
        }
        (objects, None)
    }

    /// The same for a selector that looks into the objects.
    ///
    /// # Errors
    /// As [`chosen::choose`].
    async fn look_through(
        &self,
        server: &ApiServer,
        resource: &Resource,
        namespace: Option<&str>,
        selector: &Selector,
    ) -> Result<Taken> {
        let (mut objects, mut after) = (Vec::new(), self.after.clone());
        loop {
            let some: Vec<ObjectRef> =
                self.snapshot.range(namespace, after.as_ref()).take(LOOKED_AT).cloned().collect();
            let Some(last) = some.last() else { return Ok((objects, None)) };
            after = Some(last.key.clone());
            let chosen = chosen::choose(server, resource, selector, &some).await?;
            for object in chosen.into_iter().flatten() {
                if self.is_full(&objects) {
                    return Ok(next(objects));
                }
                objects.push(object);
            }
        }
    }

    fn is_full(&self, objects: &[ObjectRef]) -> bool {
        self.limit > 0 && objects.len() == self.limit
    }

    fn page(&self, namespace: Option<&str>, selector: &Selector, (objects, next): Taken) -> Page {
        let revision = self.snapshot.revision;
        let remaining = (next.is_some() && selector.is_empty())
            .then(|| self.snapshot.range(namespace, self.after.as_ref()).count().saturating_sub(objects.len()));
        let next = next.map(|after| Token { revision: Some(revision), after });
        Page { revision, objects, next, remaining, shard: None }
    }
}

/// A page that others follow.
fn next(objects: Vec<ObjectRef>) -> Taken {
    let last = objects.last().map(|object| object.key.clone());
    (objects, last)
}

/// The snapshot that a list is of, and which part of it.
///
/// # Errors
/// As [`list`].
async fn source(store: &Store, resource: &Resource, namespace: Option<&str>, options: &ListOptions) -> Result<Source> {
    let (mut after, mut limit) = (None, options.limit);
    let snapshot: Snapshot = if !options.continue_token.is_empty() && options.revision != Some(0) {
        if options.revision.is_some() {
            return Err(ApiError::bad_request("specifying resource version is not allowed when using continue"));
        }
        let token = Token::decode(&options.continue_token, namespace.unwrap_or_default(), resource.namespaced)?;
        let snapshot = match token.revision {
            None => store.snapshot(&resource.storage),
            Some(revision) => {
                reach(store, revision).await?;
                past(store, resource, revision).ok_or_else(|| stale_token(&token))?
            }
        };
        after = Some(token.after);
        snapshot
    } else {
        match (options.revision, options.revision_match) {
            (Some(revision), Match::Exact) => at(store, resource, revision).await?,
            // The old rule: a version and a limit without a match mean exactly that version.
            (Some(revision), Match::Unset) if revision > 0 && limit > 0 => at(store, resource, revision).await?,
            (Some(revision), _) => {
                reach(store, revision).await?;
                limit = 0;
                store.snapshot(&resource.storage)
            }
            (None, _) => store.snapshot(&resource.storage),
        }
    };
    Ok(Source { snapshot, after, limit })
}

async fn at(store: &Store, resource: &Resource, revision: u64) -> Result<Snapshot> {
    reach(store, revision).await?;
    past(store, resource, revision)
        .ok_or_else(|| ApiError::expired("The resourceVersion for the provided list is too old."))
}

/// A collection as it was. Revision 1 is before the first write: nothing was ever seen at it, and clients that make it
/// up are told what upstream tells them, that it is gone.
fn past(store: &Store, resource: &Resource, revision: u64) -> Option<Snapshot> {
    store.snapshot_at(&resource.storage, revision).ok().filter(|_| revision > 1)
}

/// A token whose revision is gone; the answer carries one that goes on at the newest.
fn stale_token(token: &Token) -> ApiError {
    let fresh = Token { revision: None, after: token.after.clone() };
    ApiError::expired(
        "The provided continue parameter is too old to display a consistent list result. You can start a new list \
         without the continue parameter, or use the continue token in this response to retrieve the remainder of the \
         results. Continuing with the provided token results in an inconsistent list - objects that were created, \
         modified, or deleted between the time the first chunk was returned and now may show up in the list.",
    )
    .with_continue(fresh.encode())
}
