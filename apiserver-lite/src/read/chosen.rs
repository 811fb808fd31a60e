//! Selection by the fields that a definition lets clients select by.
//!
//! They are those of an object in the version that is asked for. Mostly they are kept with the object; of one that was
//! written before its definition said what it says now, and of one that a webhook converts, they are read from the object
//! as it would be given out.

use super::Selector;
use crate::resource::Resource;
use crate::server::ApiServer;
use crate::status::Result;
use crate::store::ObjectRef;

/// Objects that are read before others get their turn.
const AT_ONCE: usize = 64;

/// Those of some objects that a selector chooses, each in its place, where a webhook had to convert it as it is given out.
///
/// # Errors
/// 500 without a reason when a webhook has to convert one of them and fails.
pub async fn choose(
    server: &ApiServer,
    resource: &Resource,
    selector: &Selector,
    objects: &[ObjectRef],
) -> Result<Vec<Option<ObjectRef>>> {
    let Some(definition) = resource.definition.as_ref().filter(|_| selector.looks_inside()) else {
        return Ok(objects.iter().map(|object| selector.matches(object).then(|| object.clone())).collect());
    };
    let (mut places, mut unknown) = (Vec::new(), Vec::new());
    let mut chosen = Vec::with_capacity(objects.len());
    for (place, object) in objects.iter().enumerate() {
        if definition.knows_fields(object) {
            chosen.push(selector.matches(object).then(|| object.clone()));
            continue;
        }
        chosen.push(None);
        if selector.matches_outside(object) {
            places.push(place);
            unknown.push(object.clone());
        }
    }
    if places.is_empty() {
        return Ok(chosen);
    }
    let served = crate::crd::served(server, resource, unknown).await?;
    for (count, (place, object)) in places.into_iter().zip(served).enumerate() {
        if count % AT_ONCE == AT_ONCE - 1 {
            tokio::task::yield_now().await;
        }
        let fits = selector.matches_inside(&definition.selected(&object));
        chosen[place] = fits.then_some(object);
    }
    Ok(chosen)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crd::samples::{color, colors, create, label};
    use crate::read::ListOptions;

    fn names(objects: &[ObjectRef]) -> Vec<&str> {
        objects.iter().map(|object| &*object.key.name).collect()
    }

    /// Objects that were there before their definition let clients select by a field were not found by it, and neither was
    /// what somebody wrote through a version that does not.
    #[tokio::test]
    async fn objects_are_found_by_fields_whenever_and_however_they_were_written() {
        let server = crate::serve::testing::server().await;
        let [first, plain, selects] = colors();
        create(&server, &first, color("a", "red")).await;
        create(&server, &first, color("b", "blue")).await;
        create(&server, &first, color("c", "red")).await;
        create(&server, &plain, color("d", "red")).await;
        create(&server, &selects, color("e", "red")).await;
        label(&server, &plain, "e", "x").await;
        for (fields, found) in [
            ("spec.color=red", &["a", "c", "d", "e"][..]),
            ("spec.color!=red", &["b"]),
            ("spec.color=red,metadata.name!=c", &["a", "d", "e"]),
        ] {
            let selector = Selector::parse(&selects, "", fields).expect("a selector");
            let options = ListOptions::default();
            let source = super::super::source(&server.store, &selects, None, &options).await.expect("a list");
            let (all, next) = source.look_through(&server, &selects, None, &selector).await.expect("nobody converts");
            assert_eq!((names(&all), next), (found.to_vec(), None), "{fields}");
        }
    }

    #[tokio::test]
    async fn pages_of_what_is_looked_into_are_the_whole_list() {
        let server = crate::serve::testing::server().await;
        let [first, _, selects] = colors();
        for number in 0..7 {
            let color = color(&format!("n{number}"), if number == 3 { "blue" } else { "red" });
            create(&server, &first, color).await;
        }
        let selector = Selector::parse(&selects, "", "spec.color=red").expect("a selector");
        let (mut options, mut together) = (ListOptions { limit: 2, ..ListOptions::default() }, Vec::new());
        loop {
            let source = super::super::source(&server.store, &selects, None, &options).await.expect("a list");
            let taken = source.look_through(&server, &selects, None, &selector).await.expect("nobody converts");
            let page = source.page(None, &selector, taken);
            together.push(names(&page.objects).join(" "));
            let Some(token) = page.next else { break };
            options.continue_token = token.encode();
        }
        assert_eq!(together, ["n0 n1", "n2 n4", "n5 n6"]);
    }
}
