case $1 in
    configure) if [ -n "$2" ]; then on_upgrade; else on_install; fi ;;
    abort-upgrade | abort-remove | abort-deconfigure) reload ;;
esac
