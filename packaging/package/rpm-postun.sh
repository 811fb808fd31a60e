if [ "$1" -eq 0 ]; then after_remove; fi
