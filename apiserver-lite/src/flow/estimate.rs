//! How many seats a request takes: one, unless it reads many objects.

use crate::request::{Query, RequestInfo};
use crate::server::ApiServer;

/// Objects of a list that make up a seat, as upstream.
const OBJECTS_PER_SEAT: usize = 100;

/// Seats of a request, no more than `most`.
pub fn seats(server: &ApiServer, info: &RequestInfo, query: &Query, most: u32) -> u32 {
    let lists = match info.verb.as_str() {
        "list" => true,
        "watch" => query.flag("sendInitialEvents"),
        _ => false,
    };
    if !lists || !info.is_resource || info.named_by_selector {
        return 1;
    }
    let Some(resource) = server.resources.lookup(&info.group, &info.version, &info.resource) else { return 1 };
    let stored = server.store.snapshot(&resource.storage).len();
    let limit = query.get("limit").and_then(|l| l.parse::<usize>().ok()).filter(|l| *l > 0);
    let objects = limit.map_or(stored, |limit| limit.min(stored));
    u32::try_from(objects.div_ceil(OBJECTS_PER_SEAT)).unwrap_or(u32::MAX).clamp(1, most.max(1))
}
