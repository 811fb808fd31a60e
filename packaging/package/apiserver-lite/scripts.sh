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
# As the user that the server is, in the groups that its unit and the drop-ins give it: root may read what the server may not.
check_settings() {
    user=$(unit_has User)
    group=$(unit_has Group)
    more=$(unit_has SupplementaryGroups | tr ' ' ',')
    set -- apiserver-lite serve --check
    if [ -n "$user" ] && command -v setpriv >/dev/null; then
        own=$(id -G "$user" | tr ' ' ',')
        set -- setpriv --reuid="$user" --regid="${group:-$(id -g "$user")}" --groups="$own${more:+,$more}" "$@"
    fi
    arguments apiserver-lite.service serve | tr '\n' '\0' | xargs -0 "$@"
}
unit_has() { systemctl show --property="$1" --value apiserver-lite.service; }
# The socket first: it would start the daemon again.
on_remove() {
    stop apiserver-lite.socket
    stop apiserver-lite.service
}
after_remove() { reload; }
on_purge() {
    rm -rf --one-file-system /var/lib/apiserver-lite
    rmdir $config 2>/dev/null || true
}
