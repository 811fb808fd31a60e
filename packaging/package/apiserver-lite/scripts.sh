config=/etc/orchestrator-lite
on_install() {
    if command -v systemd-sysusers >/dev/null; then systemd-sysusers apiserver-lite.conf || true; fi
    if command -v systemd-tmpfiles >/dev/null; then systemd-tmpfiles --create apiserver-lite.conf || true; fi
    if [ -e /etc/apparmor.d/apiserver-lite ] && command -v apparmor_parser >/dev/null && [ -d /sys/kernel/security/apparmor ]; then
        apparmor_parser -r -W -T /etc/apparmor.d/apiserver-lite || true
    fi
    reload
}
on_upgrade() {
    on_install
    restart apiserver-lite.service check_settings
}
# As the user that the server is: root may read what the server may not.
check_settings() {
    user=$(systemctl show --property=User --value apiserver-lite.service)
    set -- apiserver-lite serve --check
    if [ -n "$user" ] && command -v setpriv >/dev/null; then
        set -- setpriv --reuid="$user" --regid="$(id -g "$user")" --init-groups "$@"
    fi
    arguments apiserver-lite.service serve | tr '\n' '\0' | xargs -0 "$@"
}
on_remove() { stop apiserver-lite.service; }
after_remove() { reload; }
on_purge() {
    rm -rf --one-file-system /var/lib/apiserver-lite
    rmdir $config 2>/dev/null || true
}
