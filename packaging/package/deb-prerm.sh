case $1 in
    remove) on_remove ;;
esac
