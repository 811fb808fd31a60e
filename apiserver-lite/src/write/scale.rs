//! The `scale` subresource: the number of replicas of a workload as an `autoscaling/v1` Scale of its own.

use std::sync::LazyLock;

use serde_json::{Value, json};

use super::options::{WriteOptions, invalid};
use super::subresource::schema;
use super::update::{self, Target};
use super::{MODIFIED, applied, decode, meta};
use crate::admission::Call;
use crate::apply::{self, Writer};
use crate::http::{Accepted, Response};
use crate::patch::{self, Patch};
use crate::read;
use crate::resource::{Resource, Schema, SchemaSet, Verbs};
use crate::selectors;
use crate::server::{ApiServer, Request};
use crate::status::{ApiError, Cause, Result, quote};

const SCALE: (&str, &str, &str) = ("autoscaling", "v1", "Scale");

/// A number of replicas that no object has: it stands for none.
const UNSAID: i64 = i32::MIN as i64;

/// The field of a workload that its Scale holds.
const REPLICAS: &[&str] = &["spec", "replicas"];

/// The Scale as a resource of its own, for the rules of field ownership.
static SCALE_RESOURCE: LazyLock<Resource> = LazyLock::new(|| {
    let id = proto::schema::TypeSet::built_in().kind(SCALE.0, SCALE.1, SCALE.2).unwrap_or_default();
    let schema = Schema { set: SchemaSet::BuiltIn, id };
    Resource {
        group: SCALE.0.into(),
        version: SCALE.1.into(),
        plural: "scales".into(),
        singular: "scale".into(),
        kind: SCALE.2.into(),
        list_kind: "".into(),
        namespaced: true,
        short_names: Vec::new(),
        categories: Vec::new(),
        verbs: Verbs::default(),
        subresources: Vec::new(),
        schema: schema.clone(),
        storage: "scales.autoscaling".into(),
        storage_version: "autoscaling/v1".into(),
        stored: schema,
        custom: false,
        defaults: Default::default(),
        definition: None,
    }
});

/// What a client wants of a scale.
enum Sent {
    Whole(Value),
    Patch(Patch),
    Applied(Value),
}

/// GET, PUT and PATCH of a scale.
///
/// # Errors
/// As updates of the workload.
pub(super) async fn handle(
    server: &ApiServer,
    mut request: Request,
    resource: &Resource,
    accepted: Accepted,
    verb: Verbs,
) -> Result<Response> {
    let (namespace, name) = (request.info.namespace.clone(), request.info.name.clone());
    let missing = || ApiError::missing(&resource.group, &resource.plural, &name);
    // A definition says where a custom kind keeps its numbers.
    let own = resource.definition.as_ref().and_then(|d| d.scale.as_ref());
    let place: Vec<&str> = own.map_or(REPLICAS.to_vec(), |own| own.replicas.iter().map(|n| &**n).collect());
    if verb == Verbs::GET {
        let found = server.store.get(&resource.storage, &namespace, &name).ok_or_else(missing)?;
        let scale = scale_of(own, &crate::crd::worked_on(server, resource, &found).await?)?;
        if scale["spec"]["replicas"].is_null() {
            let place = quote(&own.map(crate::crd::Scale::place).unwrap_or_default());
            return Err(ApiError::internal(format!("the spec replicas field {place} does not exist")));
        }
        return read::value_response(accepted, &SCALE_RESOURCE, scale, &request.query);
    }
    let options = WriteOptions::parse(&request, resource)?;
    let body = request.body().await?;
    let schema = schema(SCALE)?;
    let target = Target { resource, subresource: "scale", namespace: &namespace, name: &name };
    let sent = if verb == Verbs::UPDATE {
        let mut scale = decode::kind(&schema, SCALE, request.content_type(), &body, &options)?;
        meta::settle_namespace(&mut scale, &namespace)?;
        meta::check_name(&scale, &name)?;
        // Upstream's store compares it before anybody says that there is nothing.
        let uid = meta::text(&scale, "uid");
        if !uid.is_empty() && server.store.get(&resource.storage, &namespace, &name).is_none() {
            return Err(update::other_uid(target, uid, ""));
        }
        Sent::Whole(scale)
    } else if patch::media(request.content_type()) == applied::MEDIA {
        Sent::Applied(applied::read(&body)?)
    } else {
        let media = patch::media(request.content_type());
        if resource.custom && !update::is_for_custom(media) {
            return Err(update::unsupported_media());
        }
        let patch = Patch::parse(media, &body, options.validation)?;
        Sent::Patch(patch.ok_or_else(crate::routing::unsupported_media)?)
    };
    let writer = Writer { resource: &SCALE_RESOURCE, subresource: "scale", manager: &options.manager };
    let object = update::replace(server, target, &options, update::Tracking::Said, |old, tree| {
        let mut before = scale_of(own, tree)?;
        // A number that nobody says tells whether the request says one.
        if before["spec"]["replicas"].is_null() {
            before["spec"]["replicas"] = UNSAID.into();
        }
        let owners = &tree["metadata"]["managedFields"];
        let api_version = resource.api_version();
        if let Some(of_scale) = apply::scale::of_scale(owners, &api_version, &place) {
            before["metadata"]["managedFields"] = of_scale;
        }
        let scale = match &sent {
            Sent::Applied(config) => {
                let merged = apply::apply(writer, Some(&before), config, options.force)?;
                let conformed = proto::json::conform(schema.set(), schema.id, &merged);
                conformed.map_err(|e| ApiError::new(500, "", e.to_string()))?.value
            }
            Sent::Whole(scale) => {
                let mut scale = scale.clone();
                apply::updated(writer, &before, &mut scale);
                scale
            }
            Sent::Patch(patch) => {
                let json = || {
                    let mut out = Vec::new();
                    proto::json::write(schema.set(), schema.id, &before, &mut out);
                    out
                };
                let patched = patch.apply(&schema, SCALE, before.clone(), None, json, options.validation)?;
                patched.warnings.into_iter().for_each(crate::warning::add);
                let mut scale = patched.value;
                meta::check_name(&scale, &name)?;
                apply::updated(writer, &before, &mut scale);
                scale
            }
        };
        let conflict = |why: &str| ApiError::conflict(&resource.group, &resource.plural, &name, why);
        let uid = meta::text(&scale, "uid");
        if !uid.is_empty() && *uid != *old.keys.uid {
            return Err(update::other_uid(target, uid, &old.keys.uid));
        }
        let version = meta::text(&scale, "resourceVersion");
        if !matches!(version, "" | "0") && version != old.revision.to_string() {
            return Err(conflict(MODIFIED));
        }
        let replicas = scale["spec"]["replicas"].as_i64().unwrap_or(0);
        if let Some(own) = own.filter(|_| replicas == UNSAID) {
            let place = quote(&own.place());
            return Err(ApiError::bad_request(format!("the spec replicas field {place} cannot be empty")));
        }
        // Of a custom kind the object is checked, with its own path to the number.
        if replicas < 0 && own.is_none() {
            let cause = Cause {
                reason: "FieldValueInvalid".into(),
                message: format!("Invalid value: {replicas}: must be greater than or equal to 0"),
                field: "spec.replicas".into(),
            };
            return Err(invalid("autoscaling", "Scale", &name, vec![cause]));
        }
        let mut value = tree.clone();
        match own {
            Some(own) => own.set(&mut value, replicas)?,
            None => value["spec"]["replicas"] = replicas.into(),
        }
        let owners = apply::scale::of_workload(owners, &scale["metadata"]["managedFields"], &api_version, &place);
        apply::put(&mut value, owners);
        Ok(value)
    })
    .await?;
    let mut scale = scale_of(own, &crate::crd::worked_on(server, resource, &object).await?)
        .map_err(|error| ApiError::bad_request(error.status().message.clone()))?;
    say(&mut scale);
    read::value_response(accepted, &SCALE_RESOURCE, scale, &request.query)
}

/// Lets admission look at a change of scale, as a `Scale`; what it makes of the number goes back into the workload.
///
/// # Errors
/// What admission refuses.
pub(super) async fn admit(call: &Call<'_>, workload: &mut Value) -> Result<()> {
    let own = call.resource.definition.as_ref().and_then(|definition| definition.scale.as_ref());
    let shown = |workload: &Value| {
        scale_of(own, workload).map(|mut scale| {
            say(&mut scale);
            scale
        })
    };
    let before = call.old.map(shown).transpose()?;
    let mut scale = shown(workload)?;
    let asked = scale["spec"]["replicas"].clone();
    let call = Call { old: before.as_ref(), ..*call };
    call.server.admission.mutate(&call, &mut scale).await?;
    let replicas = scale["spec"]["replicas"].as_i64().unwrap_or(0);
    if asked != scale["spec"]["replicas"] {
        match own {
            Some(own) => own.set(workload, replicas)?,
            None => workload["spec"]["replicas"] = replicas.into(),
        }
    }
    // A scale counts against no quota, so nothing is reserved.
    call.server.admission.validate(&call, &scale).await.map(drop)
}

/// Makes a number that an object does not say zero, as Go has it.
fn say(scale: &mut Value) {
    let replicas = &mut scale["spec"]["replicas"];
    if replicas.is_null() {
        *replicas = 0.into();
    }
}

/// The `Scale` of a workload. A custom object may not say how many replicas there are; null stands for that.
///
/// # Errors
/// 500 when something else than a number or a text is where a custom kind keeps them.
pub fn scale_of(own: Option<&crate::crd::Scale>, workload: &Value) -> Result<Value> {
    let metadata = &workload["metadata"];
    let mut shown = json!({});
    for key in ["name", "namespace", "uid", "resourceVersion", "creationTimestamp"] {
        shown[key] = metadata[key].clone();
    }
    if let Some(own) = own {
        let numbers = own.read(workload).map_err(|why| ApiError::new(500, "", why))?;
        return Ok(json!({
            "kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": shown,
            "spec": {"replicas": numbers.replicas},
            "status": {"replicas": numbers.status_replicas, "selector": numbers.selector},
        }));
    }
    Ok(json!({
        "kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": shown,
        "spec": {"replicas": workload["spec"]["replicas"].as_i64().unwrap_or(0)},
        "status": {
            "replicas": workload["status"]["replicas"].as_i64().unwrap_or(0),
            "selector": selectors::text(&workload["spec"]["selector"]),
        },
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::{Body, Form};
    use crate::request::Query;

    #[test]
    fn a_scale_can_be_a_table_or_its_metadata() {
        let workload = json!({"metadata": {"name": "web", "resourceVersion": "7"}, "spec": {"replicas": 3},
            "status": {"replicas": 2}});
        let shown = |form: Form| {
            let accepted = Accepted { form, ..Accepted::JSON };
            let response = read::value_response(
                accepted,
                &SCALE_RESOURCE,
                scale_of(None, &workload).expect("a scale"),
                &Query::parse(""),
            );
            let Body::Chunks(mut chunks) = response.expect("a form of its own").into_body() else {
                panic!("known bytes")
            };
            serde_json::from_slice::<Value>(chunks.make_contiguous().concat().as_slice()).expect("JSON")
        };
        let table = shown(Form::Table);
        assert_eq!(table["rows"][0]["cells"], json!(["web", 3, 2, "<unknown>"]));
        assert_eq!(table["metadata"]["resourceVersion"], "7");
        let columns = table["columnDefinitions"].as_array().into_iter().flatten();
        let columns: Vec<&Value> = columns.map(|column| &column["name"]).collect();
        assert_eq!(columns, ["Name", "Desired", "Available", "Age"]);
        assert_eq!(shown(Form::Metadata)["kind"], "PartialObjectMetadata");
        assert_eq!(shown(Form::Whole)["spec"]["replicas"], 3);
    }
}
