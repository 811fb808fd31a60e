# The two commands that README.md gives, and what they are made of.
.PHONY: run test build bench

# A one-node cluster in the foreground; everything it writes is under .run/.
run:
	@packaging/run/run.sh

# Everything that has to pass before a change lands; .ci/run calls exactly this.
test:
	@tests/run.sh

build:
	cargo build --release -p apiserver-lite -p agent

# Figures of docs/performance.md.
bench: build
	@tests/bench.sh
