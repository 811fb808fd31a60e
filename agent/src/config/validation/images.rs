//! Images: when they go, and which may be used without a look at credentials.

use crate::config::{Configuration, FeatureGates};

pub(super) fn image_collection(c: &Configuration, _gates: &FeatureGates, errors: &mut Vec<String>) {
    let (low, high) = (c.image_gc_low_threshold_percent, c.image_gc_high_threshold_percent);
    for (name, flag, value) in [
        ("imageGCHighThresholdPercent", "--image-gc-high-threshold", high),
        ("imageGCLowThresholdPercent", "--image-gc-low-threshold", low),
    ] {
        if !(0..=100).contains(&value) {
            errors.push(format!("{name} ({flag}) {value} must be between 0 and 100, inclusive"));
        }
    }
    if low >= high {
        errors.push(format!(
            "imageGCLowThresholdPercent (--image-gc-low-threshold) {low} must be less than \
             imageGCHighThresholdPercent (--image-gc-high-threshold) {high}"
        ));
    }
    let (minimum, maximum) = (c.image_minimum_gc_age, c.image_maximum_gc_age);
    for (name, age) in [("imageMinimumGCAge", minimum), ("imageMaximumGCAge", maximum)] {
        if age.nanos < 0 {
            errors.push(format!("{name} {age} must not be negative"));
        }
    }
    if maximum.nanos > 0 && maximum <= minimum {
        errors.push(format!("imageMaximumGCAge {maximum} must be greater than imageMinimumGCAge {minimum}"));
    }
}

pub(super) fn pull_policy(c: &Configuration, gates: &FeatureGates, errors: &mut Vec<String>) {
    if !gates.enabled("KubeletEnsureSecretPulledImages") {
        for (name, set) in [
            ("imagePullCredentialsVerificationPolicy", !c.image_pull_credentials_verification_policy.is_empty()),
            ("preloadedImagesVerificationAllowlist", !c.preloaded_images_verification_allowlist.is_empty()),
        ] {
            if set {
                errors.push(format!(
                    "`{name}` must not be set if KubeletEnsureSecretPulledImages feature gate is not enabled"
                ));
            }
        }
        return;
    }
    let policy = c.image_pull_credentials_verification_policy.as_str();
    if !matches!(policy, "NeverVerify" | "NeverVerifyPreloadedImages" | "NeverVerifyAllowlistedImages" | "AlwaysVerify")
    {
        errors.push(format!(
            "option {policy:?} specified for imagePullCredentialsVerificationPolicy. Valid options are \
             \"NeverVerify\", \"NeverVerifyPreloadedImages\", \"NeverVerifyAllowlistedImages\" or \"AlwaysVerify\""
        ));
    }
    let list = &c.preloaded_images_verification_allowlist;
    if !list.is_empty() && policy != "NeverVerifyAllowlistedImages" {
        errors.push(
            "can't set `preloadedImagesVerificationAllowlist` if `imagePullCredentialsVertificationPolicy` is not \
             \"NeverVerifyAllowlistedImages\""
                .into(),
        );
    } else if let Some(reason) = list.iter().find_map(|pattern| pattern_error(pattern)) {
        errors.push(format!("invalid image pattern in `preloadedImagesVerificationAllowlist`: {reason}"));
    }
}

/// An image in its full form without tag and digest, or everything below a path with `/*` at its end.
fn pattern_error(pattern: &str) -> Option<String> {
    if pattern.trim() != pattern {
        return Some(format!("leading/trailing spaces are not allowed: {pattern}"));
    }
    let below = pattern.ends_with("/*");
    let name = if below { &pattern[..pattern.len() - 1] } else { pattern };
    if name.is_empty() {
        return Some(format!("the supplied pattern is too short: {pattern}"));
    }
    if name.contains('*') {
        return Some(format!("not a valid wildcard pattern, only patterns ending with '/*' are allowed: {pattern}"));
    }
    if below {
        return (name == "/").then(|| "at least registry hostname is required".into());
    }
    match crate::images::reference::parse(name).map(|image| image.name()) {
        Ok(full) if full == name => None,
        Ok(_) => Some(format!("neither tag nor digest is accepted in an image reference: {pattern}")),
        Err(error) => Some(format!("failed to parse as an image name: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_of_the_allowlist_stand_as_they_are_recorded() {
        for good in ["docker.io/library/busybox", "registry.example:5000/a/b", "localhost/x", "a.b/*", "a.b/c/*"] {
            assert_eq!(pattern_error(good), None, "{good}");
        }
        let untagged = "neither tag nor digest is accepted in an image reference: ";
        for (bad, reason) in [
            ("", "the supplied pattern is too short: ".to_owned()),
            (" a.b/c", "leading/trailing spaces are not allowed:  a.b/c".to_owned()),
            ("/*", "at least registry hostname is required".to_owned()),
            ("a.b/*/c", "not a valid wildcard pattern, only patterns ending with '/*' are allowed: a.b/*/c".to_owned()),
            ("busybox", format!("{untagged}busybox")),
            ("a.b/c:1", format!("{untagged}a.b/c:1")),
            ("a b", "failed to parse as an image name: invalid reference format".to_owned()),
            (
                "Foo/Bar",
                "failed to parse as an image name: invalid reference format: repository name (Bar) must be lowercase"
                    .to_owned(),
            ),
        ] {
            assert_eq!(pattern_error(bad), Some(reason), "{bad:?}");
        }
    }
}
