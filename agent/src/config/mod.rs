//! Configuration: file, drop-ins, flags and defaults become one checked document and the typed [`Configuration`].
//!
//! Order, as the kubelet has it: the file (relative paths resolved against its folder), `*.conf` drop-ins in lexical
//! order as JSON merge patches, flags on top, defaults where nothing was said, validation. Everything happens before a
//! port opens. [`Loaded::document`] is what `/configz` shows.

mod address;
mod defaults;
mod eviction;
mod features;
mod file;
mod fold;
mod gates;
mod load;
mod located;
mod no_effect;
mod origins;
mod places;
mod reference;
mod start;
mod tls;
mod types;
mod validation;

pub use address::parse_ip;
pub use eviction::{Signal, Threshold, ThresholdValue, thresholds};
pub use features::{FeatureGates, GATES, Stage};
pub use load::{ConfigError, Loaded, Sources, all_problems, load};
pub use located::wrong_types;
pub use no_effect::without_effect;
pub use origins::{Origin, Origins, leaves};
pub use places::place;
pub use reference::reference;
pub use start::cpu_set;
pub use tls::TlsOffer;
pub use types::{
    Authentication, Authorization, Configuration, CrashLoopBackOff, FlushFrequency, GoDuration, Logging,
    LoggingOptions, MemorySwap, OutputRouting, ReservedMemory, ShutdownGracePeriod, Taint, Tracing, UserNamespaces,
    VModule,
};

/// A setting from a flag: dotted path into the configuration, and how it changes what is there.
#[derive(Debug, Clone, PartialEq)]
pub struct Override {
    pub path: &'static str,
    /// The flag's name.
    pub flag: &'static str,
    pub value: serde_json::Value,
    /// Keys are added to the map (`featureGates`) instead of replacing it.
    pub merge: bool,
}
