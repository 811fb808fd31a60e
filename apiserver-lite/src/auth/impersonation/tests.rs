use http::HeaderMap;
use http::header::{HeaderName, HeaderValue};

use super::*;

/// Rights as `verb group/resource/subresource namespace/name`; an empty name stands for all.
struct Rights<'a>(&'a [(&'a str, &'a str, &'a str)]);

impl Rights<'_> {
    fn decide(&self, asked: &Attributes<'_>) -> Decision {
        let info = asked.info;
        let resource = format!("{}/{}/{}", info.group, info.resource, info.subresource);
        let holds = |(verb, what, name): &(&str, &str, &str)| {
            *verb == info.verb && *what == resource && (name.is_empty() || *name == info.name)
        };
        if self.0.iter().any(holds) { Decision::allow("") } else { Decision::no_opinion("") }
    }

    fn ask(&self, by: &Impersonation, user: &User, headers: &[(&str, &str)]) -> Result<Option<Impersonated>> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            let name = HeaderName::from_bytes(name.as_bytes()).expect("a name");
            map.append(name, HeaderValue::from_str(value).expect("a value"));
        }
        let request = RequestInfo {
            is_resource: true,
            verb: "list".into(),
            version: "v1".into(),
            resource: "configmaps".into(),
            namespace: "w3".into(),
            ..RequestInfo::default()
        };
        by.user(&map, user, &request, &|asked| self.decide(asked))
    }

    fn bob(&self, headers: &[(&str, &str)]) -> std::result::Result<Impersonated, String> {
        let user = User { name: "bob".into(), ..User::default() };
        match self.ask(&Impersonation::new(true), &user, headers) {
            Ok(impersonated) => Ok(impersonated.expect("somebody else")),
            Err(error) => Err(error.status().message.clone()),
        }
    }
}

const ZOE: (&str, &str) = ("impersonate-user", "zoe");
const ON: (&str, &str, &str) = ("impersonate-on:user-info:list", "/configmaps/", "");

#[test]
fn a_constrained_right_takes_both_halves() {
    let whom = ("impersonate:user-info", "authentication.k8s.io/users/", "zoe");
    let zoe = Rights(&[ON, whom]).bob(&[ZOE]).expect("allowed");
    assert_eq!((zoe.user.name.as_str(), zoe.constraint.as_str()), ("zoe", "impersonate:user-info"));
    assert_eq!(zoe.user.groups, ["system:authenticated"]);
    assert_eq!(
        Rights(&[ON]).bob(&[ZOE]).expect_err("not this user"),
        "users.authentication.k8s.io \"zoe\" is forbidden: User \"bob\" cannot impersonate:user-info resource \"users\" \
         in API group \"authentication.k8s.io\" at the cluster scope"
    );
    assert_eq!(
        Rights(&[whom]).bob(&[ZOE]).expect_err("not this request"),
        "configmaps is forbidden: User \"bob\" cannot impersonate-on:user-info:list resource \"configmaps\" in API \
         group \"\" in the namespace \"w3\""
    );
    assert!(Rights(&[ON, whom]).bob(&[ZOE, ("impersonate-group", "g")]).is_err(), "a group is a right of its own");
}

#[test]
fn the_plain_right_still_does() {
    let plain = Rights(&[("impersonate", "/users/", "zoe")]).bob(&[ZOE]).expect("allowed");
    assert_eq!(plain.constraint, "");
    let off = Impersonation::new(false);
    let bob = User { name: "bob".into(), ..User::default() };
    let refused = Rights(&[ON]).ask(&off, &bob, &[ZOE]).expect_err("the gate is off");
    assert!(refused.status().message.contains("cannot impersonate resource \"users\""), "{refused:?}");
}

#[test]
fn each_kind_of_user_has_its_own_mode() {
    let said = |name: &str| Rights(&[]).bob(&[("impersonate-user", name)]).expect_err("no rights");
    assert!(said("system:serviceaccount:w3:default").contains("cannot impersonate-on:serviceaccount:list"));
    assert!(said("system:node:n1").contains("cannot impersonate-on:arbitrary-node:list"));
    // With more than a name only the plain right is left.
    let account = [("impersonate-user", "system:serviceaccount:w3:default"), ("impersonate-group", "g")];
    assert_eq!(
        Rights(&[]).bob(&account).expect_err("no rights"),
        "serviceaccounts \"default\" is forbidden: User \"bob\" cannot impersonate resource \"serviceaccounts\" in API \
         group \"\" in the namespace \"w3\""
    );
    let rights = [
        ("impersonate-on:arbitrary-node:list", "/configmaps/", ""),
        ("impersonate:arbitrary-node", "authentication.k8s.io/nodes/", "n1"),
    ];
    let node = Rights(&rights).bob(&[("impersonate-user", "system:node:n1")]).expect("allowed");
    assert_eq!(node.user.groups, ["system:nodes", "system:authenticated"]);
}

#[test]
fn an_account_may_be_the_node_it_runs_on() {
    let key = "authentication.kubernetes.io/node-name";
    let agent = User {
        name: "system:serviceaccount:kube-system:agent".into(),
        extra: vec![(key.into(), vec!["n1".into()])],
        ..User::default()
    };
    let rights = Rights(&[
        ("impersonate-on:associated-node:list", "/configmaps/", ""),
        ("impersonate:associated-node", "authentication.k8s.io/nodes/", "*"),
    ]);
    let ask = |node: &str| rights.ask(&Impersonation::new(true), &agent, &[("impersonate-user", node)]);
    let own = ask("system:node:n1").expect("its own").expect("somebody else");
    assert_eq!((own.user.name.as_str(), own.constraint.as_str()), ("system:node:n1", "impersonate:associated-node"));
    assert!(ask("system:node:n2").is_err());
}

#[test]
fn constrained_modes_refuse_what_means_everything_or_nothing() {
    let rights = [
        ON,
        ("impersonate:user-info", "authentication.k8s.io/users/", ""),
        ("impersonate:user-info", "authentication.k8s.io/groups/", ""),
    ];
    for (header, value, why) in [
        ("impersonate-group", "system:masters", "impersonating the system:masters group is not allowed"),
        ("impersonate-group", "", "impersonating the empty string group is not allowed"),
        ("impersonate-extra-scopes", "a", "impersonating an invalid key in extra is not allowed: extra.key: Invalid"),
        ("impersonate-extra-acme.io%2Fa", "", "impersonating the empty string value in extra is not allowed"),
    ] {
        let said = Rights(&rights).bob(&[ZOE, (header, value)]).expect_err(why);
        assert!(said.contains(why), "{said}");
    }
}

#[test]
fn the_right_to_all_groups_is_asked_for_once() {
    let all = ("impersonate:user-info", "authentication.k8s.io/groups/", "*");
    let rights = [ON, ("impersonate:user-info", "authentication.k8s.io/users/", ""), all];
    let group = |name: &'static str| ("impersonate-group", name);
    let mut headers = vec![ZOE, group("a"), group("b"), group("c")];
    assert!(Rights(&rights).bob(&headers).is_err(), "few groups are asked for by name");
    headers.push(group("d"));
    assert!(Rights(&rights).bob(&headers).is_ok());
}

#[test]
fn the_way_that_was_open_last_is_tried_first() {
    let by = Impersonation::new(true);
    let bob = User { name: "bob".into(), ..User::default() };
    let plain = Rights(&[("impersonate", "/users/", "zoe")]);
    assert!(plain.ask(&by, &bob, &[ZOE]).is_ok());
    let refused = plain.ask(&by, &bob, &[("impersonate-user", "ann")]).expect_err("another");
    assert!(refused.status().message.contains("cannot impersonate resource"), "{refused:?}");
}

#[test]
fn headers_without_a_user_are_a_mistake() {
    let said = Rights(&[]).bob(&[("impersonate-group", "g")]).expect_err("no name");
    assert_eq!(
        said,
        "requested &user.DefaultInfo{Name:\"\", UID:\"\", Groups:[]string{\"g\"}, Extra:map[string][]string(nil)} \
         without impersonating a user name"
    );
}
