# In the guest, by busybox: the machine's own files, read-only below what is written here and lost, and then hosts.sh.
options=trans=virtio,version=9p2000.L,msize=1048576
mount -t 9p -o $options,ro,cache=loose root /low
mount -t tmpfs tmpfs /rw && mkdir /rw/upper /rw/work
mount -t overlay -o lowerdir=/low,upperdir=/rw/upper,workdir=/rw/work root /new
for folder in proc sys dev; do mount --move /$folder /new/$folder; done
mkdir -p /new/dev/shm /new/dev/pts
mount -t tmpfs -o size=75% shm /new/dev/shm
mount -t devpts pts /new/dev/pts
mount -t tmpfs run /new/run
mkdir /new/run/guest
mount --move /ctl /new/run/guest
exec chroot /new /bin/bash /run/guest/hosts.sh
