//! How fast an autoscaler may go where its metrics send it: stabilization windows, rates of change, and its bounds.
//!
//! Follows `normalizeDesiredReplicasWithBehaviors` of `pkg/controller/podautoscaler`.

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
const READY: (&str, &str) = ("ReadyForNewScale", "recommended size matches current size");

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
        let read = |policy: &Value| {
            let percent = policy["type"] == "Percent";
            (percent, policy["value"].as_i64().unwrap_or(0), seconds(&policy["periodSeconds"]).unwrap_or(usual))
        };
        Rules {
            window: seconds(&rules["stabilizationWindowSeconds"]).unwrap_or(Duration::from_secs(if up {
                0
            } else {
                300
            })),
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
    /// Notes a change of scale.
    pub fn scaled(&mut self, from: i64, to: i64) {
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
    pub fn limit(&mut self, behavior: &Value, current: i64, wanted: i64, (min, max): (i64, i64)) -> Limited {
        let now = Instant::now();
        let (up, down) = (Rules::of(behavior, "scaleUp"), Rules::of(behavior, "scaleDown"));
        // The least that was asked for in the one window, and the most in the other.
        let recent = |window: Duration| self.wanted.iter().filter(move |(at, _)| now - *at < window).map(|(_, n)| *n);
        let least = recent(up.window).fold(wanted, i64::min);
        let most = recent(down.window).fold(wanted, i64::max);
        self.wanted.retain(|(at, _)| now - *at < up.window.max(down.window));
        self.wanted.push((now, wanted));
        let stable = current.max(least).min(most);
        let able = if stable == wanted {
            READY
        } else if stable > wanted {
            (
                "ScaleDownStabilized",
                "recent recommendations were higher than current one, applying the highest recent recommendation",
            )
        } else {
            (
                "ScaleUpStabilized",
                "recent recommendations were lower than current one, applying the lowest recent recommendation",
            )
        };
        let (replicas, limited) = if stable > current {
            let rate = self.rate_up(&up, current, now).max(current);
            if max <= rate && stable > max {
                (max, Some(("TooManyReplicas", "the desired replica count is more than the maximum replica count")))
            } else if stable > rate {
                let text = "the desired replica count is increasing faster than the maximum scale rate";
                (rate, Some(("ScaleUpLimit", text)))
            } else {
                (stable, None)
            }
        } else if stable < current {
            let rate = self.rate_down(&down, current, now).min(current);
            if min >= rate && stable < min {
                (min, Some(("TooFewReplicas", "the desired replica count is less than the minimum replica count")))
            } else if stable < rate {
                let text = "the desired replica count is decreasing faster than the maximum scale rate";
                (rate, Some(("ScaleDownLimit", text)))
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
        let usual = Value::Null;
        let up = history.limit(&usual, 2, 50, (1, 100));
        assert_eq!((up.replicas, up.limited.map(|l| l.0)), (6, Some("ScaleUpLimit")), "four pods, or twice as many");
        history.scaled(2, 6);
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
