if [ "$1" -eq 0 ]; then on_remove; fi
