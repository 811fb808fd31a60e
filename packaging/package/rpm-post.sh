if [ "$1" -ge 2 ]; then on_upgrade; else on_install; fi
