//! How fast an autoscaler may go where its metrics send it: stabilization windows, rates of change, and its bounds.
//!
//! Follows `normalizeDesiredReplicas` of `pkg/controller/podautoscaler`, and `normalizeDesiredReplicasWithBehaviors`
//! where an autoscaler says itself how fast it may go.

use std::cmp::Ordering;
use std::time::Duration;

use serde_json::Value;
use tokio::time::Instant;

/// What an autoscaler wanted and did lately.
#[derive(Debug, Default)]
pub struct History {
    /// Replicas that the metrics asked for.
    wanted: Vec<(Instant, i64)>,
    /// By how many it went up, and down.
    ups: Vec<(Instant, i64)>,
    downs: Vec<(Instant, i64)>,
}

/// A number of replicas, and the conditions that say how it came about: type, status, reason and message.
#[derive(Debug, PartialEq)]
pub struct Limited {
    pub replicas: i64,
    pub able: (&'static str, &'static str),
    /// None for what is within all bounds.
    pub limited: Option<(&'static str, &'static str)>,
}

/// The longest that anything is remembered, as validation allows.
const LONGEST: Duration = Duration::from_secs(3600);
/// As `--horizontal-pod-autoscaler-downscale-stabilization`.
const DOWN_WINDOW: Duration = Duration::from_secs(300);
/// What a scale may grow to at once where the autoscaler says nothing: so many times what it is, at least so many.
const GROWTH: i64 = 2;
const LEAST_LIMIT: i64 = 4;

const READY: (&str, &str) = ("ReadyForNewScale", "recommended size matches current size");
const DOWN_STABILIZED: (&str, &str) = (
    "ScaleDownStabilized",
    "recent recommendations were higher than current one, applying the highest recent recommendation",
);
const UP_STABILIZED: (&str, &str) = (
    "ScaleUpStabilized",
    "recent recommendations were lower than current one, applying the lowest recent recommendation",
);
const UP_LIMIT: (&str, &str) =
    ("ScaleUpLimit", "the desired replica count is increasing faster than the maximum scale rate");
const TOO_MANY: (&str, &str) = ("TooManyReplicas", "the desired replica count is more than the maximum replica count");
const DOWN_LIMIT: (&str, &str) =
    ("ScaleDownLimit", "the desired replica count is decreasing faster than the maximum scale rate");
const TOO_FEW: (&str, &str) = ("TooFewReplicas", "the desired replica count is less than the minimum replica count");

struct Rules<'a> {
    window: Duration,
    /// `Max`, `Min` or `Disabled`.
    select: &'a str,
    /// Percent or not, how many, and in which time.
    policies: Vec<(bool, i64, Duration)>,
}

impl<'a> Rules<'a> {
    fn of(behavior: &'a Value, name: &str) -> Self {
        let (rules, up) = (&behavior[name], name == "scaleUp");
        let seconds = |value: &Value| value.as_u64().map(Duration::from_secs);
        let policies = rules["policies"].as_array().filter(|list| !list.is_empty());
        let usual = Duration::from_secs(15);
        let window = if up { Duration::ZERO } else { DOWN_WINDOW };
        let read = |policy: &Value| {
            let percent = policy["type"] == "Percent";
            (percent, policy["value"].as_i64().unwrap_or(0), seconds(&policy["periodSeconds"]).unwrap_or(usual))
        };
        Rules {
            window: seconds(&rules["stabilizationWindowSeconds"]).unwrap_or(window),
            select: rules["selectPolicy"].as_str().unwrap_or("Max"),
            policies: match policies {
                Some(list) => list.iter().map(read).collect(),
                None if up => vec![(false, 4, usual), (true, 100, usual)],
                None => vec![(true, 100, usual)],
            },
        }
    }
}

fn within(events: &[(Instant, i64)], now: Instant, period: Duration) -> i64 {
    events.iter().filter(|(at, _)| now - *at < period).map(|(_, change)| change).sum()
}

impl History {
    /// The first look at a scale: it counts as wanted as it is found.
    pub fn begin(&mut self, current: i64) {
        if self.wanted.is_empty() {
            self.wanted.push((Instant::now(), current));
        }
    }

    /// Notes a change of scale, for who says how much of it there may be in which time.
    pub fn scaled(&mut self, behavior: &Value, from: i64, to: i64) {
        if !behavior.is_object() {
            return;
        }
        let now = Instant::now();
        match to - from {
            up if up > 0 => self.ups.push((now, up)),
            down => self.downs.push((now, -down)),
        }
        for events in [&mut self.ups, &mut self.downs] {
            events.retain(|(at, _)| now - *at < LONGEST);
        }
    }

    /// The replicas that may be had now of those that are wanted.
    pub fn limit(&mut self, behavior: &Value, current: i64, wanted: i64, bounds: (i64, i64)) -> Limited {
        match behavior.is_object() {
            true => self.limit_by(behavior, current, wanted, bounds),
            false => self.limit_usually(current, wanted, bounds),
        }
    }

    /// Where the autoscaler says nothing of how fast it may go.
    fn limit_usually(&mut self, current: i64, wanted: i64, (min, max): (i64, i64)) -> Limited {
        let now = Instant::now();
        self.wanted.retain(|(at, _)| now - *at < DOWN_WINDOW);
        self.wanted.push((now, wanted));
        let stable = self.wanted.iter().fold(wanted, |most, (_, n)| most.max(*n));
        let able = if stable == wanted { READY } else { DOWN_STABILIZED };
        let limit = current.saturating_mul(GROWTH).max(LEAST_LIMIT);
        let (replicas, limited) = if stable < min {
            (min, Some(TOO_FEW))
        } else if stable > max.min(limit) {
            (max.min(limit), Some(if max > limit { UP_LIMIT } else { TOO_MANY }))
        } else {
            (stable, None)
        };
        Limited { replicas, able, limited }
    }

    /// Where it says how fast.
    fn limit_by(&mut self, behavior: &Value, current: i64, wanted: i64, (min, max): (i64, i64)) -> Limited {
        let now = Instant::now();
        let (up, down) = (Rules::of(behavior, "scaleUp"), Rules::of(behavior, "scaleDown"));
        // The least that was asked for in the one window, and the most in the other.
        let recent = |window: Duration| self.wanted.iter().filter(move |(at, _)| now - *at < window).map(|(_, n)| *n);
        let least = recent(up.window).fold(wanted, i64::min);
        let most = recent(down.window).fold(wanted, i64::max);
        self.wanted.retain(|(at, _)| now - *at < up.window.max(down.window));
        self.wanted.push((now, wanted));
        let stable = current.max(least).min(most);
        let able = match stable.cmp(&wanted) {
            Ordering::Equal => READY,
            Ordering::Greater => DOWN_STABILIZED,
            Ordering::Less => UP_STABILIZED,
        };
        let (replicas, limited) = if stable > current {
            let rate = self.rate_up(&up, current, now).max(current);
            if max <= rate && stable > max {
                (max, Some(TOO_MANY))
            } else if stable > rate {
                (rate, Some(UP_LIMIT))
            } else {
                (stable, None)
            }
        } else if stable < current {
            let rate = self.rate_down(&down, current, now).min(current);
            if min >= rate && stable < min {
                (min, Some(TOO_FEW))
            } else if stable < rate {
                (rate, Some(DOWN_LIMIT))
            } else {
                (stable, None)
            }
        } else {
            (stable, None)
        };
        Limited { replicas, able, limited }
    }

    /// The most replicas that may be had now.
    fn rate_up(&self, rules: &Rules<'_>, current: i64, now: Instant) -> i64 {
        let limit = |(percent, value, period): &(bool, i64, Duration)| {
            let before = current - within(&self.ups, now, *period) + within(&self.downs, now, *period);
            if *percent { (before * (100 + value) + 99).div_euclid(100) } else { before + value }
        };
        let limits = rules.policies.iter().map(limit);
        match rules.select {
            "Disabled" => current,
            "Min" => limits.min().unwrap_or(current),
            _ => limits.max().unwrap_or(current),
        }
    }

    /// The fewest replicas that may be had now.
    fn rate_down(&self, rules: &Rules<'_>, current: i64, now: Instant) -> i64 {
        let limit = |(percent, value, period): &(bool, i64, Duration)| {
            let before = current - within(&self.ups, now, *period) + within(&self.downs, now, *period);
            if *percent { (before * (100 - value)).div_euclid(100) } else { before - value }
        };
        let limits = rules.policies.iter().map(limit);
        match rules.select {
            "Disabled" => current,
            "Min" => limits.max().unwrap_or(current),
            _ => limits.min().unwrap_or(current),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn going_up_is_limited_and_going_down_waits() {
        let mut history = History::default();
        let usual = json!({});
        let up = history.limit(&usual, 2, 50, (1, 100));
        assert_eq!((up.replicas, up.limited.map(|l| l.0)), (6, Some("ScaleUpLimit")), "four pods, or twice as many");
        history.scaled(&usual, 2, 6);
        let up = history.limit(&usual, 6, 50, (1, 100));
        assert_eq!(up.replicas, 6, "no more in the same quarter of a minute");
        tokio::time::advance(Duration::from_secs(15)).await;
        let up = history.limit(&usual, 6, 50, (1, 10));
        assert_eq!((up.replicas, up.limited.map(|l| l.0)), (10, Some("TooManyReplicas")));
        let down = history.limit(&usual, 10, 1, (1, 10));
        assert_eq!((down.replicas, down.able.0), (10, "ScaleDownStabilized"));
        tokio::time::advance(Duration::from_secs(300)).await;
        let down = history.limit(&usual, 10, 1, (3, 10));
        assert_eq!((down.replicas, down.limited.map(|l| l.0)), (3, Some("TooFewReplicas")));
    }

    /// The rules of a `behavior` that leaves all out were those of autoscalers without any as well: four more at once
    /// instead of four in all, and no more in the same quarter of a minute.
    #[tokio::test(start_paused = true)]
    async fn without_a_behavior_a_scale_doubles_each_time_and_is_four_at_least() {
        let mut history = History::default();
        let mut limit = |current: i64, wanted: i64, bounds: (i64, i64)| {
            let limited = history.limit(&Value::Null, current, wanted, bounds);
            history.scaled(&Value::Null, current, limited.replicas);
            (limited.replicas, limited.able.0, limited.limited.map(|l| l.0))
        };
        let ready = "ReadyForNewScale";
        assert_eq!(limit(1, 50, (1, 100)), (4, ready, Some("ScaleUpLimit")));
        assert_eq!(limit(4, 50, (1, 100)), (8, ready, Some("ScaleUpLimit")), "at once");
        assert_eq!(limit(8, 50, (1, 10)), (10, ready, Some("TooManyReplicas")));
        assert_eq!(limit(8, 50, (1, 16)), (16, ready, Some("TooManyReplicas")), "no less than the rate allows");
        assert_eq!(limit(16, 1, (1, 100)), (32, "ScaleDownStabilized", Some("ScaleUpLimit")), "50 were wanted");
        tokio::time::advance(Duration::from_secs(300)).await;
        assert_eq!(limit(32, 5, (1, 100)), (5, ready, None), "down there is no limit");
        tokio::time::advance(Duration::from_secs(300)).await;
        assert_eq!(limit(5, 1, (2, 100)), (2, ready, Some("TooFewReplicas")));
    }

    /// A controller that had just begun took away at once what was there.
    #[tokio::test(start_paused = true)]
    async fn what_is_found_at_first_is_not_given_up_before_the_window_is_over() {
        for behavior in [Value::Null, json!({})] {
            let mut history = History::default();
            history.begin(9);
            assert_eq!(history.limit(&behavior, 9, 2, (1, 10)).replicas, 9);
            tokio::time::advance(Duration::from_secs(300)).await;
            history.begin(9);
            assert_eq!(history.limit(&behavior, 9, 2, (1, 10)).replicas, 2);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_behavior_says_how_fast() {
        let behavior = json!({
            "scaleUp": {"policies": [{"type": "Pods", "value": 1, "periodSeconds": 60}]},
            "scaleDown": {"stabilizationWindowSeconds": 0, "selectPolicy": "Disabled"},
        });
        let mut history = History::default();
        assert_eq!(history.limit(&behavior, 3, 9, (1, 10)).replicas, 4);
        assert_eq!(history.limit(&behavior, 3, 1, (1, 10)).replicas, 3);
        let steady = history.limit(&behavior, 3, 3, (1, 10));
        assert_eq!((steady.able, steady.limited), (READY, None));
    }
}
