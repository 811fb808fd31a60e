//! One file per promise that the project makes to the people who run it.

mod access;
mod admission;
mod agent_configuration;
mod agent_service;
mod bad_input;
mod controllers;
mod custom_resources;
mod eviction;
mod first_run;
mod full_disk;
mod heartbeats;
mod kill_nine;
mod kube_crate;
mod kubectl;
mod licences;
mod node_clients;
mod node_endpoints;
mod node_recordings;
mod node_resources;
mod node_variants;
mod python_client;
mod recorded_exchanges;
mod shutdown;
mod storage;
mod standalone;
mod survival;
