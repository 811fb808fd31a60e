case $1 in
    remove) after_remove ;;
    purge) on_purge ;;
esac
