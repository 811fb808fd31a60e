//! The node agent: takes pods from the API server, static files and an HTTP source, and runs them over the CRI.
