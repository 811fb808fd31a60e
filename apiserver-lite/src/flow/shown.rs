//! What flow control shows of itself: metrics under upstream's names, and the pages for people who look for a jam.

use std::fmt::Write as _;
use std::sync::atomic::Ordering::Relaxed;
use std::time::SystemTime;

use proto::time::Timestamp;

use super::FlowControl;
use super::counters::{BOUNDS, Histogram, Reason};
use super::level::{Kind, Level};
use super::pool::{Shown, View};
use super::table::Table;
use crate::http::{Response, respond};
use crate::server::{ApiServer, Request};

const PAGES: &str = "/debug/api_priority_and_fairness/dump_";

/// Answers the debug pages; None for other paths.
pub fn answer(server: &ApiServer, request: &Request) -> Option<Response> {
    let page = request.info.path.strip_prefix(PAGES)?;
    let flow = server.flow.as_ref()?;
    let table = flow.table.load();
    let rows = match page {
        "priority_levels" => levels(flow, &table),
        "queues" => queues(flow, &table),
        "requests" => requests(flow, &table, request.query.flag("includeRequestDetails")),
        _ => return None,
    };
    Some(respond::text(200, aligned(&rows)))
}

/// A table as Go's tab writer lays it out: cells end with a comma and are padded, but for the last of a row.
fn aligned(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        let cells = rows.iter().filter(|row| column + 1 < row.len()).filter_map(|row| row.get(column));
        // A comma and a blank behind the longest one.
        cells.map(|cell| cell.chars().count() + 2).max().unwrap_or(0).max(8)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut out = String::new();
    for row in rows {
        for (at, cell) in row.iter().enumerate() {
            if at + 1 < row.len() {
                let width = widths[at];
                let _ = write!(out, "{:<width$}", format!("{cell},"));
            } else {
                out.push_str(cell);
            }
        }
        out.push('\n');
    }
    out
}

fn header(names: &[&str]) -> Vec<String> {
    names.iter().map(|n| (*n).to_owned()).collect()
}

fn view(flow: &FlowControl, level: &Level) -> View {
    level.slot.map(|slot| flow.pool.view(slot)).unwrap_or_default()
}

fn levels(flow: &FlowControl, table: &Table) -> Vec<Vec<String>> {
    let mut rows = vec![header(&[
        "PriorityLevelName",
        "ActiveQueues",
        "IsIdle",
        "IsQuiescing",
        "WaitingRequests",
        "ExecutingRequests",
        "DispatchedRequests",
        "RejectedRequests",
        "TimedoutRequests",
        "CancelledRequests",
    ])];
    for level in table.levels.values() {
        let mut view = view(flow, level);
        if level.kind == Kind::Exempt {
            // These are counted with their schemas only.
            let own = table.counted().filter(|(schema, _)| schema.level.name == level.name);
            for (_, counters) in own {
                view.executing += u32::try_from(counters.executing.load(Relaxed)).unwrap_or(0);
                view.totals.dispatched += counters.dispatched.load(Relaxed);
            }
        }
        let totals = view.totals;
        rows.push(vec![
            level.name.to_string(),
            view.queues.len().to_string(),
            (view.waiting == 0 && view.executing == 0 && view.in_use == 0).to_string(),
            view.retired.to_string(),
            view.waiting.to_string(),
            view.executing.to_string(),
            totals.dispatched.to_string(),
            totals.rejected.to_string(),
            totals.timed_out.to_string(),
            totals.cancelled.to_string(),
        ]);
    }
    rows
}

fn queues(flow: &FlowControl, table: &Table) -> Vec<Vec<String>> {
    let mut rows = vec![header(&[
        "PriorityLevelName",
        "Index",
        "PendingRequests",
        "ExecutingRequests",
        "SeatsInUse",
        "NextDispatchR",
        "InitialSeatsSum",
        "MaxSeatsSum",
        "TotalWorkSum",
    ])];
    for level in table.levels.values() {
        let view = view(flow, level);
        let queued = matches!(&level.kind, Kind::Limited(limited) if limited.queuing.is_some());
        if !queued {
            let mut row = vec![level.name.to_string()];
            row.extend((1..9).map(|_| "<none>".to_owned()));
            rows.push(row);
            continue;
        }
        for queue in &view.queues {
            let seats: u32 = queue.requests.iter().map(|(_, seats)| seats).sum();
            rows.push(vec![
                level.name.to_string(),
                queue.index.to_string(),
                queue.requests.len().to_string(),
                "0".into(),
                "0".into(),
                format!("{:.8}ss", queue.next),
                seats.to_string(),
                seats.to_string(),
                format!("{:.8}ss", f64::from(seats)),
            ]);
        }
    }
    rows
}

fn time(at: SystemTime) -> String {
    let since = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let seconds = i64::try_from(since.as_secs()).unwrap_or(0);
    Timestamp { seconds, nanos: since.subsec_nanos() }.to_micros_text()
}

fn requests(flow: &FlowControl, table: &Table, details: bool) -> Vec<Vec<String>> {
    let mut names = vec![
        "PriorityLevelName",
        "FlowSchemaName",
        "QueueIndex",
        "RequestIndexInQueue",
        "FlowDistingsher",
        "ArriveTime",
        "InitialSeats",
        "FinalSeats",
        "AdditionalLatency",
        "StartTime",
    ];
    if details {
        names.extend(["UserName", "Verb", "APIPath"]);
    }
    let mut rows = vec![header(&names)];
    for level in table.levels.values() {
        for queue in view(flow, level).queues {
            for (at, (Shown { schema, flow, arrived, user, verb, path }, seats)) in queue.requests.iter().enumerate() {
                let mut row = vec![
                    level.name.to_string(),
                    schema.to_string(),
                    queue.index.to_string(),
                    at.to_string(),
                    flow.to_string(),
                    time(*arrived),
                    seats.to_string(),
                    "0".into(),
                    "0s".into(),
                    "<none>".into(),
                ];
                if details {
                    row.extend([user.to_string(), verb.to_string(), path.to_string()]);
                }
                rows.push(row);
            }
        }
    }
    rows
}

/// Writes the metrics, each under its own heading.
pub fn metrics(flow: &FlowControl, out: &mut String) {
    let table = flow.table.load();
    let labels: Vec<String> = table
        .counted()
        .map(|(schema, _)| format!("flow_schema=\"{}\",priority_level=\"{}\"", schema.name, schema.level.name))
        .collect();
    let counted = || labels.iter().zip(table.counted().map(|(_, counters)| counters));
    let begin = |out: &mut String, name: &str, kind: &str, help: &str| {
        let name = format!("apiserver_flowcontrol_{name}");
        let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
        name
    };
    let name = begin(out, "dispatched_requests_total", "counter", "Requests that were given their seats.");
    for (labels, counters) in counted() {
        let _ = writeln!(out, "{name}{{{labels}}} {}", counters.dispatched.load(Relaxed));
    }
    let name = begin(out, "rejected_requests_total", "counter", "Requests that were sent away, by reason.");
    for (labels, counters) in counted() {
        for reason in Reason::ALL {
            let count = counters.rejected(reason);
            if count > 0 {
                let _ = writeln!(out, "{name}{{{labels},reason=\"{}\"}} {count}", reason.name());
            }
        }
    }
    type Gauge = fn(&super::counters::Counters) -> i64;
    let gauges: [(&str, &str, Gauge); 4] = [
        ("current_executing_requests", "Requests being served.", |c| c.executing.load(Relaxed)),
        ("current_executing_seats", "Seats of requests being served.", |c| c.executing_seats.load(Relaxed)),
        ("current_inqueue_requests", "Requests that wait in queues.", |c| c.waiting.load(Relaxed)),
        ("current_inqueue_seats", "Seats of requests that wait in queues.", |c| c.waiting_seats.load(Relaxed)),
    ];
    for (name, help, read) in gauges {
        let name = begin(out, name, "gauge", help);
        for (labels, counters) in counted() {
            let _ = writeln!(out, "{name}{{{labels}}} {}", read(counters));
        }
    }
    let name = begin(out, "request_wait_duration_seconds", "histogram", "Time that requests waited for their seats.");
    for (labels, counters) in counted() {
        histogram(out, &name, &format!("execute=\"true\",{labels}"), &counters.served_wait);
        histogram(out, &name, &format!("execute=\"false\",{labels}"), &counters.rejected_wait);
    }
    let name = begin(out, "request_execution_seconds", "histogram", "Time that requests were served for.");
    for (labels, counters) in counted() {
        histogram(out, &name, labels, &counters.execution);
    }
    let views: Vec<(&str, View)> = table
        .levels
        .values()
        .filter(|level| level.slot.is_some())
        .map(|level| (&*level.name, view(flow, level)))
        .collect();
    type Seats = fn(&View) -> u32;
    let limits: [(&str, &str, Seats); 4] = [
        ("nominal_limit_seats", "Seats of a priority level.", |v| v.share.nominal),
        ("lower_limit_seats", "Seats of a priority level that are never lent.", |v| v.share.min),
        ("upper_limit_seats", "The most seats that a priority level may have with borrowed ones.", |v| v.share.max),
        ("current_limit_seats", "Seats that a priority level has now.", |v| v.limit),
    ];
    for (name, help, read) in limits {
        let name = begin(out, name, "gauge", help);
        for (level, view) in &views {
            let _ = writeln!(out, "{name}{{priority_level=\"{level}\"}} {}", read(view));
        }
    }
}

/// One that has counted nothing is left out.
fn histogram(out: &mut String, name: &str, labels: &str, histogram: &Histogram) {
    let (counts, sum) = histogram.read();
    let [.., all] = counts;
    if all == 0 {
        return;
    }
    for (bound, count) in BOUNDS.iter().zip(counts) {
        let _ = writeln!(out, "{name}_bucket{{{labels},le=\"{bound}\"}} {count}");
    }
    let _ = writeln!(out, "{name}_bucket{{{labels},le=\"+Inf\"}} {all}");
    let _ = writeln!(out, "{name}_sum{{{labels}}} {sum}\n{name}_count{{{labels}}} {all}");
}
