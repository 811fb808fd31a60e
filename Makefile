# The two commands that README.md gives, and what they are made of.
.PHONY: run test build bench packages check-packages vm-test

# A one-node cluster in the foreground; everything it writes is under .run/.
run:
	@packaging/run/run.sh

# Everything that has to pass before a change lands; .ci/run calls exactly this.
test:
	@tests/run.sh

# Binaries as they are packed, optimised as a whole, in target/dist. `make run` and `make test` take those of target/release,
# which are built sooner.
build:
	@packaging/package/compile.sh

# Figures of docs/performance.md.
bench: build
	@tests/bench.sh

# .deb and .rpm of both daemons in target/packages, from the binaries of `make build`. BIN_DIR=... takes others. lintian and
# rpmlint look at them, where they are there.
packages: $(if $(BIN_DIR),,build)
	@packaging/package/build.sh target/packages
	@packaging/package/lint.sh target/packages

# Installs, upgrades, downgrades and removes them in a folder of their own.
check-packages: packages
	@packaging/package/check.sh target/packages

# The packages on a machine of their own: Debian in QEMU, systemd, containerd. Takes its time; see tests/vm/README.md.
vm-test: packages
	@tests/vm/run.sh
