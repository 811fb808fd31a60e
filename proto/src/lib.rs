//! Kubernetes API types declared once, the schema table built from them, the codecs that read it, and the gRPC services
//! of a node (CRI v1, device plugins, pod resources, plugin registration, DRA, KMS, Pods).
//!
//! Both daemons depend on this crate and share nothing else.

pub mod bearer;
pub mod cbor;
pub mod cursor;
pub mod duration;
pub mod go_base64;
pub mod json;
pub mod protobuf;
pub mod quantity;
pub mod schema;
pub mod time;
pub mod transcode;
pub mod yaml;

/// Kubernetes types as Rust values, for the kinds that Rust code handles (protobuf through prost).
#[allow(clippy::all, missing_docs, rustdoc::all, reason = "generated")]
mod types {
    include!(concat!(env!("OUT_DIR"), "/types/mod.rs"));
}

pub use types::k8s::io::api;
pub use types::k8s::io::apimachinery;

macro_rules! service {
    ($name:ident, $path:literal, $($package:ident)::+) => {
        #[allow(clippy::all, missing_docs, rustdoc::all, reason = "generated")]
        pub mod $name {
            mod generated {
                include!(concat!(env!("OUT_DIR"), "/", $path, "/mod.rs"));
            }
            pub use generated::$($package)::+::*;
        }
    };
}

service!(cri, "cri/runtime_v1", runtime::v1);
service!(csi, "node/csi_v1", csi::v1);
service!(device_plugin, "node/deviceplugin_v1beta1", v1beta1);
service!(dra, "node/dra_v1", k8s::io::kubelet::pkg::apis::dra::v1);
service!(dra_health, "node/dra_health_v1alpha1", v1alpha1);
service!(external_jwt, "node/externaljwt_v1", v1);
service!(kms, "node/kms_v2", v2);
service!(plugin_registration, "node/pluginregistration_v1", pluginregistration);
service!(pod_resources, "node/podresources_v1", v1);
service!(pods, "node/pods_v1alpha1", v1alpha1);
